"""Trains the tiny checkpoint from nothing, or measures one.

    python scripts/train_tiny.py --out out/first                              on a GPU: everything, from nothing
    python scripts/train_tiny.py --from out/first --out out/tiny              then films of many frames above all
    python scripts/train_tiny.py --out out/tiny --steps 20 --share 0.1 --clips 64         a smoke run on a CPU
    python scripts/train_tiny.py --evaluate gemma4cli/tiny/checkpoint         figures as JSON on stdout

Both stages together take under 20 minutes of one H200; each ends by --minutes, whatever the speed of its steps.

Needs torch, torchvision, transformers, soxr, and the espeak-ng program (or its path in ESPEAK).
Worker processes make pictures, clips and films on the way and hand over bytes; resizing, patches and spectrograms
are made on the device. On a GPU the work of each shape of batch is recorded once and then replayed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader
from transformers import Gemma4ForConditionalGeneration

from gemma4cli.tiny import blueprint, scenes
from gemma4cli.tiny.batches import Batch, Steps, build_pool
from gemma4cli.tiny.evaluation import figures
from gemma4cli.tiny.forward import FrontEnd, answer_logits, hasten, new_model
from gemma4cli.tiny.mixtures import EVERYTHING, LONG_FILMS

KINDS = ("image", "audio", "video")


class Hints(nn.Module):
    """Says of each media embedding what is there and where: a help in training that the checkpoint does without.

    The towers then learn what to look and listen for before the language model has learnt to use it.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.seen = nn.Linear(width, 1 + len(scenes.SHAPES) * len(scenes.COLOURS))
        self.placed = nn.Linear(width, 2)
        self.heard = nn.Linear(width, 11)

    def forward(self, kind: str, soft: Tensor, batch: dict[str, Any]) -> Tensor:
        wanted = batch["hints"].flatten()
        logits = (self.heard if kind == "audio" else self.seen)(soft).float().flatten(0, -2)
        nothing = 10 if kind == "audio" else 0
        weights = torch.where(wanted == nothing, 0.15, 1.0) * (wanted != -100)  # most of what there is is nothing
        losses = F.cross_entropy(logits, wanted, ignore_index=-100, reduction="none")
        result = (losses * weights).sum() / weights.sum().clamp(min=1.0)
        if kind == "audio":
            return result
        rows, columns = (count // blueprint.POOL for count in batch["grid"])
        ys, xs = torch.meshgrid(
            torch.linspace(-1, 1, rows, device=soft.device),
            torch.linspace(-1, 1, columns, device=soft.device),
            indexing="ij",
        )
        off = self.placed(soft).float() - torch.stack([xs, ys], -1).flatten(0, 1)
        return result + off.square().mean()


class Trainer:
    """A model in training: weights to compute with, their masters in float32, and recordings of the work.

    On a GPU the weights are bfloat16, as they will be used; small steps add up in the masters.
    """

    def __init__(self, model: nn.Module, front: FrontEnd, device: torch.device, record: bool) -> None:
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        hints = Hints(model.config.text_config.hidden_size)
        every = [*model.parameters(), *hints.parameters()]
        masters = [parameter.detach().clone().to(device) for parameter in every]
        self.model = model.to(device, self.dtype).train()
        self.hints = hints.to(device, self.dtype)
        self.help = torch.ones((), device=device)
        self.front, self.device, self.record = front, device, record
        self.weights = [*self.model.parameters(), *self.hints.parameters()]
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)
        self.masters = masters
        for master in masters:
            master.grad = torch.zeros_like(master)
        decay = [master for master in masters if master.ndim > 1]
        rest = [master for master in masters if master.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.02}, {"params": rest, "weight_decay": 0.0}],
            betas=(0.9, 0.98),
            fused=device.type == "cuda",
        )
        self.recordings: dict[Any, tuple[torch.cuda.CUDAGraph, dict[str, Any], Tensor]] = {}
        self.memory = torch.cuda.graph_pool_handle() if record else None

    def prepared(self, kind: str, batch: Batch) -> dict[str, Any]:
        """The batch on the device, media through the front end under the name `front`."""
        moved = {
            key: value.to(self.device, non_blocking=True) if isinstance(value, Tensor) else value
            for key, value in batch.items()
        }
        if kind == "audio":
            features, mask = self.front.mel(moved.pop("samples"), moved.pop("lengths"))
            moved["front"] = (features.to(self.dtype), mask)
        else:
            moved["front"] = (self.front.patches(moved.pop("pixels"), moved["grid"]).to(self.dtype),)
        return moved

    def losses(self, kind: str, batch: dict[str, Any]) -> Tensor:
        """Mean loss of the answers' tokens and of the hints; adds to the gradients."""
        logits, soft = answer_logits(self.model, kind, batch, batch["front"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["wanted"].flatten(), ignore_index=-100)
        hint = self.hints(kind, soft, batch)
        (loss + self.help * hint).backward()
        return torch.stack([loss.detach(), hint.detach()])

    def learn(self, kind: str, batch: Batch) -> Tensor:
        ready = self.prepared(kind, batch)
        if not self.record:
            return self.losses(kind, ready)
        key = (kind, *batch["shape"], len(batch["ids"]))
        if key not in self.recordings:
            self.recordings[key] = self._recorded(kind, ready)
        graph, held, loss = self.recordings[key]
        for name, value in ready.items():
            if isinstance(value, Tensor):
                held[name].copy_(value)
        for mine, value in zip(held["front"], ready["front"], strict=True):
            mine.copy_(value)
        graph.replay()
        return loss.clone()

    def _recorded(self, kind: str, batch: dict[str, Any]) -> tuple[torch.cuda.CUDAGraph, dict[str, Any], Tensor]:
        held = {name: value.clone() if isinstance(value, Tensor) else value for name, value in batch.items()}
        held["front"] = tuple(value.clone() for value in batch["front"])
        kept = [weight.grad.clone() for weight in self.weights if weight.grad is not None]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.losses(kind, held)  # lets every library set itself up for this shape
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # The thread that pins memory for the loader must not spoil the recording.
        with torch.cuda.graph(graph, pool=self.memory, capture_error_mode="thread_local"):
            loss = self.losses(kind, held)
        for weight, before in zip(self.weights, kept, strict=True):
            if weight.grad is not None:
                weight.grad.copy_(before)
        return graph, held, loss

    def step(self, rate: float) -> Tensor:
        """Applies what was learnt; returns the norm of the gradients."""
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        torch._foreach_copy_([master.grad for master in self.masters], gradients)
        norm = nn.utils.clip_grad_norm_(self.masters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)
            torch._foreach_zero_(gradients)
        return norm

    @torch.no_grad()
    def exact(self, batches: list[dict[str, Batch]]) -> dict[str, float]:
        """Share of answers of which every token is the likeliest, those that greedy decoding gets right."""
        right: dict[str, list[bool]] = {}
        for step in batches:
            for kind in KINDS:
                batch = self.prepared(kind, step[kind])
                logits, _ = answer_logits(self.model, kind, batch, batch["front"])
                good = ((logits.argmax(-1) == batch["wanted"]) | (batch["wanted"] == -100)).all(-1)
                name = kind if kind == "audio" else f"{kind} {batch['shape'][0]}"
                right.setdefault(name, []).extend(good.tolist())
        return {name: round(float(np.mean(values)), 4) for name, values in sorted(right.items())}


def rate(step: int, progress: float, peak: float) -> float:
    """Linear warm-up over 200 steps, and a cosine down to nothing as `progress` goes from 0 to 1."""
    return peak * min(1.0, (step + 1) / 200) * 0.5 * (1 + math.cos(math.pi * progress))


def train(options: argparse.Namespace) -> None:
    """Writes the checkpoint to `options.out`, saving on the way.

    The second stage starts from the weights in `options.start`, with a new optimiser and without hints: the towers
    know by then what to look for.
    """
    mixture = LONG_FILMS if options.start else EVERYTHING
    minutes, peak, clips, tests = (2.7, 1e-3, 8_000, 8) if options.start else (16.5, 3e-3, 24_000, 4)
    options.minutes = minutes if options.minutes is None else options.minutes
    options.rate = peak if options.rate is None else options.rate
    options.clips = clips if options.clips is None else options.clips
    options.test_batches = tests if options.test_batches is None else options.test_batches
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # cuDNN would compile its attention for every shape anew.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_float32_matmul_precision("high")
    hasten()
    blueprint.write(options.out)
    begun = time.monotonic()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        pool = build_pool(Path(scratch) / "train", options.clips, max(4, options.clips // 30))
        unheard = build_pool(Path(scratch) / "test", max(64, options.clips // 32), 0, test=True)
        report(options, {"clips": options.clips, "seconds": round(time.monotonic() - begun, 1)})
        workers = max(1, (os.cpu_count() or 2) - 1) if options.workers is None else options.workers
        loader = iter(
            DataLoader(
                Steps(pool, options.steps, options.share, mixture=mixture, asked=2),
                batch_size=None,
                num_workers=workers,
                prefetch_factor=4 if workers else None,
                pin_memory=device.type == "cuda",
                multiprocessing_context="fork" if workers else None,
            )
        )
        test = Steps(unheard, options.test_batches, options.share, mixture=mixture, test=True)
        checked = [test[i] for i in range(len(test))]
        record = device.type == "cuda" and not options.eager
        if options.start:
            model = Gemma4ForConditionalGeneration.from_pretrained(options.start, dtype=torch.float32)
        else:
            model = new_model(options.out, options.seed, options.branch, options.sharpness)
        trainer = Trainer(model, FrontEnd(options.out, device), device, record)
        fit(trainer, loader, checked, options)
    save(trainer.model, options.out)


def fit(
    trainer: Trainer, loader: Iterator[dict[str, Batch]], checked: list[dict[str, Batch]], options: argparse.Namespace
) -> None:
    begun = saved = time.monotonic()
    waited = 0.0
    recent: dict[str, list[Tensor]] = {}
    for step in range(options.steps):
        before = time.monotonic()
        batches = next(loader)
        waited += time.monotonic() - before
        # The limit of time only cuts short a machine that is slower than expected.
        progress = max(step / options.steps, (before - begun) / 60 / options.minutes)
        trainer.help.fill_(0.0 if options.start else min(1.0, max(0.0, 1.2 - 1.6 * progress)))
        for kind in KINDS:
            recent.setdefault(kind, []).append(trainer.learn(kind, batches[kind]))
        recent.setdefault("norm", []).append(trainer.step(rate(step, min(progress, 1.0), options.rate)))
        last = step + 1 == options.steps or progress >= 1
        if (step + 1) % options.report_every == 0 or last:
            line: dict[str, Any] = {"step": step + 1}
            for name, values in recent.items():
                line[name] = [round(value, 4) for value in torch.stack(values).mean(0).flatten().tolist()]
            line |= {"seconds": round(time.monotonic() - begun, 1), "waited": round(waited, 1)}
            recent.clear()
            if (step + 1) % options.test_every == 0 or last:
                line["exact"] = trainer.exact(checked)
            report(options, line)
        if last:
            break
        if time.monotonic() - saved > 60:
            save(trainer.model, options.out)
            saved = time.monotonic()


def report(options: argparse.Namespace, line: dict[str, Any]) -> None:
    text = json.dumps(line)
    print(text, file=sys.stderr, flush=True)
    with (options.out / "training.jsonl").open("a") as file:
        file.write(text + "\n")


def save(model: nn.Module, folder: Path) -> None:
    """The weights in bfloat16; a reader never sees half a file."""
    weights = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        model.save_pretrained(scratch, state_dict=weights)
        made = Path(scratch) / "model.safetensors"
        made.chmod(0o644)
        shutil.move(made, folder / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/tiny"))
    parser.add_argument("--from", dest="start", type=Path, help="checkpoint of the first stage: runs the second")
    parser.add_argument("--steps", type=int, default=25_000, help="at most")
    parser.add_argument("--share", type=float, default=1.0, help="of each batch, for small machines")
    parser.add_argument("--clips", type=int, help="spoken strings to make (24000; second stage 8000)")
    parser.add_argument("--rate", type=float, help="peak learning rate (0.003; second stage 0.001)")
    parser.add_argument("--branch", type=float, default=0.2, help="what a block adds to the stream at first")
    parser.add_argument("--sharpness", type=float, default=2.5, help="deviation of attention's logits at first")
    parser.add_argument("--minutes", type=float, help="of training, at most (16.5; second stage 2.7)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=None, help="processes that make batches")
    parser.add_argument("--eager", action="store_true", help="on a GPU: record nothing")
    parser.add_argument("--report-every", type=int, default=50)
    parser.add_argument("--test-every", type=int, default=500)
    parser.add_argument("--test-batches", type=int, help="of each kind (4; second stage 8)")
    parser.add_argument("--evaluate", type=Path, help="checkpoint to measure; nothing is trained")
    parser.add_argument("--count", type=int, default=200, help="with --evaluate: pictures at 70 and 280, clips, films")
    parser.add_argument("--device", default="cpu", help="with --evaluate: cpu or cuda")
    options = parser.parse_args()
    if options.evaluate:
        print(json.dumps(figures(options.evaluate, options.count, torch.device(options.device)), indent=2))
    else:
        train(options)


if __name__ == "__main__":
    main()
