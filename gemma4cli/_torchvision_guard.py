"""Lets the CUDA build of torchvision be imported beside a CPU build of torch.

PyPI serves torchvision for x86-64 as a CUDA build alone. Beside a CPU torch its compiled operators cannot load, and
`torchvision._meta_registrations`, which describes those operators, then stops the whole import. Gemma 4's
processor needs only torchvision's pure-torch transforms, so that one module is answered with an empty one when,
and only when, the operators are not there.

A `.pth` file in site-packages imports this at the start of every interpreter, because vLLM starts processes that
import torchvision before anything of ours. It must stay this cheap.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_GUARDED = "torchvision._meta_registrations"


class _EmptyModule(Loader):
    def exec_module(self, module: ModuleType) -> None:
        pass


class _Guard(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != _GUARDED:
            return None
        extension = sys.modules.get("torchvision.extension")
        if extension is None or extension._has_ops():
            return None
        return ModuleSpec(fullname, _EmptyModule())


def install() -> None:
    """Puts the guard first among the finders, once."""
    if not any(isinstance(finder, _Guard) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Guard())


install()
