# Runs one string of Python on a thread that was parked in a system call, then lets the thread go on as if nothing
# had happened. x86-64, System V ABI, position independent. The first page holds this code (read, execute), the next
# pages hold the values below (read, write). Bytes: stub.py, made by
#     as --64 -o stub.o stub.S && ld -Ttext=0 -o stub.elf stub.o && objcopy -O binary -j .text stub.elf stub.bin
# of which the part before the padding is kept.
    .intel_syntax noprefix
    .text
    .globl _start
_start:
    # 1. Everything the thread had: below its red zone, all general registers and the flags.
    lea rsp, [rsp-128]
    pushfq
    push rax
    push rbx
    push rcx
    push rdx
    push rsi
    push rdi
    push rbp
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    cld
    mov rbp, rsp
    # 2. The extended state (x87, SSE, AVX, AVX-512, AMX ...). CPUID leaf 0xD, subleaf 0, gives in EBX the size of all
    #    that this system has switched on; a size from elsewhere may be too small for a feature used later.
    mov eax, 0xd
    xor ecx, ecx
    cpuid
    sub rsp, rbx
    and rsp, -64
    mov rbx, rsp
    lea rdi, [rbx+512]              # XRSTOR wants the header's reserved bytes to be zero
    xor eax, eax
    mov ecx, 8
    rep stosq
    mov eax, -1
    mov edx, -1
    xsave64 [rbx]
    # 3. A thread that holds the interpreter's lock must not run Python from here.
    call [rip+v_check]
    test eax, eax
    jnz holds_lock
    call [rip+v_ensure]
    mov r12d, eax
    mov dword ptr [rip+v_state], 1  # the lock is ours: the string runs now
    mov rdi, [rip+v_code]
    call [rip+v_run]
    mov [rip+v_rc], eax
    mov edi, r12d
    call [rip+v_release]
    mov r13d, 3                     # done
    jmp restore
holds_lock:
    mov r13d, 2                     # nothing was run
    # 4. Back to what it was, and to the system call (or to the instruction behind it).
restore:
    mov eax, -1
    mov edx, -1
    xrstor64 [rbx]
    mov [rip+v_state], r13d
    mov rsp, rbp
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    popfq
    lea rsp, [rsp+128]
    jmp [rip+v_back]
    .org 4096
v_check:    .quad 0                 # PyGILState_Check
v_ensure:   .quad 0                 # PyGILState_Ensure
v_run:      .quad 0                 # PyRun_SimpleString
v_release:  .quad 0                 # PyGILState_Release
v_back:     .quad 0                 # where the thread goes on
v_code:     .quad 0                 # the string, ending with a zero byte
v_state:    .long 0                 # 0 waits for the lock, 1 runs, 2 refused, 3 done
v_rc:       .long 0                 # what PyRun_SimpleString gave
