;; What the host runs at its start to see that it can stop a guest: it grows its memory and a table, hands much over, and loops.
(component
  (import "take" (func $take (param "text" string)))

  (core module $libc
    (memory (export "memory") 1)
  )
  (core instance $libc (instantiate $libc))
  (core func $take-lowered (canon lower (func $take) (memory (core memory $libc "memory"))))

  (core module $guest
    (import "libc" "memory" (memory 1))
    (import "host" "take" (func $take (param i32 i32)))
    (table $table 1 funcref)
    (func (export "grow-memory") (param i32) (result i32)
      (memory.grow (local.get 0)))
    (func (export "grow-table") (param i32) (result i32)
      (table.grow $table (ref.null func) (local.get 0)))
    (func (export "hand-over") (param i32)
      (call $take (i32.const 0) (local.get 0)))
    (func (export "loop")
      (loop $again (br $again)))
  )
  (core instance $guest (instantiate $guest
    (with "libc" (instance $libc))
    (with "host" (instance (export "take" (func $take-lowered))))
  ))

  (func (export "grow-memory") (param "pages" s32) (result s32)
    (canon lift (core func $guest "grow-memory")))
  (func (export "grow-table") (param "elements" s32) (result s32)
    (canon lift (core func $guest "grow-table")))
  (func (export "hand-over") (param "bytes" s32)
    (canon lift (core func $guest "hand-over")))
  (func (export "loop")
    (canon lift (core func $guest "loop")))
)
