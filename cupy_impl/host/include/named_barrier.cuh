// cuda/include/named_barrier.cuh on a CPU.
#pragma once

inline void named_barrier_sync(int id, int threads, CUDA_HOST_SITE) { cuda_host::meet_named(id, threads, true, {file, line}); }

inline void named_barrier_arrive(int id, int threads, CUDA_HOST_SITE) { cuda_host::meet_named(id, threads, false, {file, line}); }
