;; What a module of Go imports from `wasi_snapshot_preview1`, answered inside the component: it needs nothing from a host but the contract.
;; There are no arguments, no environment and no files; what is written goes nowhere; time stands still, and randomness is the same in every
;; instance. It shares the module's memory, so it has no data and no stack of its own.
(module
  (import "env" "memory" (memory 0))

  ;; Numbers of errors in preview 1.
  (global $badf i32 (i32.const 8))
  (global $nosys i32 (i32.const 52))

  (func (export "args_sizes_get") (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (func (export "args_get") (param i32 i32) (result i32) (i32.const 0))
  (func (export "environ_sizes_get") (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (func (export "environ_get") (param i32 i32) (result i32) (i32.const 0))

  ;; Go's runtime ends itself where a clock says 0.
  (func (export "clock_time_get") (param $clock i32) (param $precision i64) (param $time i32) (result i32)
    (i64.store (local.get $time) (i64.const 1700000000000000000))
    (i32.const 0))
  (func (export "clock_res_get") (param $clock i32) (param $resolution i32) (result i32)
    (i64.store (local.get $resolution) (i64.const 1))
    (i32.const 0))

  ;; Xorshift from a fixed seed.
  (func (export "random_get") (param $at i32) (param $count i32) (result i32)
    (local $state i32)
    (local.set $state (i32.const 2463534242))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $state (i32.xor (local.get $state) (i32.shl (local.get $state) (i32.const 13))))
        (local.set $state (i32.xor (local.get $state) (i32.shr_u (local.get $state) (i32.const 17))))
        (local.set $state (i32.xor (local.get $state) (i32.shl (local.get $state) (i32.const 5))))
        (i32.store8 (local.get $at) (local.get $state))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (i32.const 0))

  (func (export "sched_yield") (result i32) (i32.const 0))
  ;; Nothing ever happens that could be waited for.
  (func (export "poll_oneoff") (param i32 i32 i32 i32) (result i32) (global.get $nosys))
  (func (export "proc_exit") (param i32) (unreachable))

  ;; Takes all of it: the sum of the lengths, each behind its pointer.
  (func (export "fd_write") (param $file i32) (param $pieces i32) (param $count i32) (param $written i32) (result i32)
    (local $sum i32)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $sum (i32.add (local.get $sum) (i32.load offset=4 (local.get $pieces))))
        (local.set $pieces (i32.add (local.get $pieces) (i32.const 8)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (i32.store (local.get $written) (local.get $sum))
    (i32.const 0))
  (func (export "fd_read") (param $file i32) (param $pieces i32) (param $count i32) (param $read i32) (result i32)
    (i32.store (local.get $read) (i32.const 0))
    (i32.const 0))
  (func (export "fd_close") (param i32) (result i32) (i32.const 0))
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) (global.get $badf))
  (func (export "fd_fdstat_get") (param i32 i32) (result i32) (global.get $badf))
  (func (export "fd_fdstat_set_flags") (param i32 i32) (result i32) (global.get $badf))
  (func (export "fd_prestat_get") (param i32 i32) (result i32) (global.get $badf))
  (func (export "fd_prestat_dir_name") (param i32 i32 i32) (result i32) (global.get $badf)))
