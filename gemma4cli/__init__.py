"""gemma4: caption, transcribe and annotate files in bulk with Gemma 4 on an embedded vLLM."""

__version__ = "0.1.0"
