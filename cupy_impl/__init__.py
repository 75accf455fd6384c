"""The operators in CUDA C++ (``cuda/*.cu``), compiled through CuPy's RawModule and launched on CuPy arrays.

One module per operator: its ``VARIANTS``, its ``plan`` (the launches of a call, which needs no GPU) and the
public function. ``device`` runs a plan on a GPU, ``host`` runs the same sources on a CPU.
"""
