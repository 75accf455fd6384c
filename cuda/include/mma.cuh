// Products of small matrices by a warp's tensor cores, and the loads that feed them, from sm_80 on: PTX ISA, "mma" and
// "ldmatrix".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Four matrices of 8 rows, 16 bytes each, in shared memory: lane l says where row l % 8 of matrix l / 8 starts, and gets of
// each matrix word l % 4 of row l / 4. TRANSPOSED, the matrices are of 16-bit numbers and rows become columns.
template <bool TRANSPOSED>
__device__ inline void load_matrices(unsigned (&words)[4], const void* row)
{
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(from)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(from)
                     : "memory");
    }
}

// d += a b: a (16, K), b (K, 8), d (16, 8), K of 32 bytes. A lane has words l % 4 of a's rows l / 4 and l / 4 + 8, first
// those of the first 16 bytes; of b's columns the same; of d columns 2 (l % 4) and the next, rows l / 4, then l / 4 + 8.
__device__ inline void mma(__half, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma(__nv_bfloat16, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// float32 as TF32: the last 13 bits do not count.
__device__ inline void mma(float, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
