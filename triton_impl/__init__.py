"""The operators in Triton, on PyTorch tensors.

One module per operator: its ``VARIANTS`` and the public function. Compiled on a GPU; with the environment
variable ``TRITON_INTERPRET=1``, set before Triton is imported, the same kernels are interpreted on CPU tensors.
"""
