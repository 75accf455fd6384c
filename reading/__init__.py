"""One operator in four columns, step beside step: NumPy, CUDA, Triton and Pallas, as a static site and in the terminal.

Works from the files alone: no framework is imported and no kernel is run.
"""
