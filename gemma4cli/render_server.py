"""Imported by the server that the render pool's processes are forked from, last of all: it builds their job."""

from gemma4cli import render_worker

render_worker.build()
