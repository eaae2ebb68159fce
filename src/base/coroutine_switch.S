/* The switch between two coroutine stacks, for x86-64 and 64-bit Arm. coroutine.c calls it and prepares the first frame.
 *
 * void far_context_swap(void **save, void *load)
 *     Pushes the callee-saved registers, stores the stack pointer in *save, loads the stack pointer from `load`, pops the
 *     registers from that stack and returns on it.
 *
 * far_context_begin
 *     The first swap to a new context returns to this address. It calls the function in the second saved register, with
 *     the first saved register as the argument. It is the outermost frame, so unwinding ends here. */

#if defined(__x86_64__)

    .text
    .globl far_context_swap
    .hidden far_context_swap
    .type far_context_swap, @function
    .balign 16
far_context_swap:
    .cfi_startproc
    endbr64
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    pushq %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbx, 0
    pushq %r12
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r12, 0
    pushq %r13
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r13, 0
    pushq %r14
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r14, 0
    pushq %r15
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r15, 0
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r15
    popq %r14
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r14
    popq %r13
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r13
    popq %r12
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r12
    popq %rbx
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbx
    popq %rbp
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbp
    ret
    .cfi_endproc
    .size far_context_swap, . - far_context_swap

    .globl far_context_begin
    .hidden far_context_begin
    .type far_context_begin, @function
    .balign 16
far_context_begin:
    .cfi_startproc
    .cfi_undefined %rip
    endbr64
    xorl %ebp, %ebp
    movq %rbx, %rdi
    callq *%r12
    ud2
    .cfi_endproc
    .size far_context_begin, . - far_context_begin

/* This code supports indirect branch tracking. It does not support a shadow stack, which would have to be switched too. */
    .section .note.gnu.property, "a", @note
    .balign 8
    .long 4, 16, 5
    .asciz "GNU"
    .long 0xc0000002, 4, 1, 0

#elif defined(__aarch64__)

    .text
    .globl far_context_swap
    .hidden far_context_swap
    .type far_context_swap, %function
    .balign 16
far_context_swap:
    .cfi_startproc
    hint #34                    /* bti c */
    stp x19, x20, [sp, #-160]!
    .cfi_def_cfa_offset 160
    .cfi_rel_offset x19, 0
    .cfi_rel_offset x20, 8
    stp x21, x22, [sp, #16]
    .cfi_rel_offset x21, 16
    .cfi_rel_offset x22, 24
    stp x23, x24, [sp, #32]
    .cfi_rel_offset x23, 32
    .cfi_rel_offset x24, 40
    stp x25, x26, [sp, #48]
    .cfi_rel_offset x25, 48
    .cfi_rel_offset x26, 56
    stp x27, x28, [sp, #64]
    .cfi_rel_offset x27, 64
    .cfi_rel_offset x28, 72
    stp x29, x30, [sp, #80]
    .cfi_rel_offset x29, 80
    .cfi_rel_offset x30, 88
    stp d8, d9, [sp, #96]
    .cfi_rel_offset d8, 96
    .cfi_rel_offset d9, 104
    stp d10, d11, [sp, #112]
    .cfi_rel_offset d10, 112
    .cfi_rel_offset d11, 120
    stp d12, d13, [sp, #128]
    .cfi_rel_offset d12, 128
    .cfi_rel_offset d13, 136
    stp d14, d15, [sp, #144]
    .cfi_rel_offset d14, 144
    .cfi_rel_offset d15, 152
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp d14, d15, [sp, #144]
    .cfi_restore d14
    .cfi_restore d15
    ldp d12, d13, [sp, #128]
    .cfi_restore d12
    .cfi_restore d13
    ldp d10, d11, [sp, #112]
    .cfi_restore d10
    .cfi_restore d11
    ldp d8, d9, [sp, #96]
    .cfi_restore d8
    .cfi_restore d9
    ldp x29, x30, [sp, #80]
    .cfi_restore x29
    .cfi_restore x30
    ldp x27, x28, [sp, #64]
    .cfi_restore x27
    .cfi_restore x28
    ldp x25, x26, [sp, #48]
    .cfi_restore x25
    .cfi_restore x26
    ldp x23, x24, [sp, #32]
    .cfi_restore x23
    .cfi_restore x24
    ldp x21, x22, [sp, #16]
    .cfi_restore x21
    .cfi_restore x22
    ldp x19, x20, [sp], #160
    .cfi_restore x19
    .cfi_restore x20
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size far_context_swap, . - far_context_swap

    .globl far_context_begin
    .hidden far_context_begin
    .type far_context_begin, %function
    .balign 16
far_context_begin:
    .cfi_startproc
    .cfi_undefined x30
    hint #36                    /* bti j */
    mov x29, xzr
    mov x30, xzr
    mov x0, x19
    blr x20
    brk #1
    .cfi_endproc
    .size far_context_begin, . - far_context_begin

/* This code supports branch target identification. */
    .section .note.gnu.property, "a", %note
    .balign 8
    .long 4, 16, 5
    .asciz "GNU"
    .long 0xc0000000, 4, 1, 0

#else
#error "farindex has no context switch for this processor yet"
#endif

    .section .note.GNU-stack, "", %progbits
