"""The operators in JAX Pallas on Mosaic GPU, on JAX arrays.

One module per operator: its ``VARIANTS`` and the public function. Compiled for Hopper; with ``interpret=``, a
``plgpu.InterpretGPUParams``, the same kernels are interpreted on a CPU.
"""
