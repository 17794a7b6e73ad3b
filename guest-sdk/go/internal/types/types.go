// Package types holds what the bindings of the contract are made of: the part of `go.bytecodealliance.org/pkg/wit/types` that this contract
// needs, so that nothing has to be downloaded.
package types

// Unit is no value.
type Unit struct{}

// Tuple2 is two values.
type Tuple2[A, B any] struct {
	F0 A
	F1 B
}

const (
	OptionNone uint8 = 0
	OptionSome uint8 = 1
)

// Option is a value or none.
type Option[T any] struct {
	tag   uint8
	value T
}

func None[T any]() Option[T]        { return Option[T]{} }
func Some[T any](value T) Option[T] { return Option[T]{tag: OptionSome, value: value} }

func (option Option[T]) Tag() uint8 { return option.tag }
func (option Option[T]) Some() T    { return option.value }

const (
	ResultOk  uint8 = 0
	ResultErr uint8 = 1
)

// Result is what a call gave, or why it failed.
type Result[T, E any] struct {
	tag uint8
	ok  T
	err E
}

func Ok[T, E any](value T) Result[T, E]  { return Result[T, E]{tag: ResultOk, ok: value} }
func Err[T, E any](error E) Result[T, E] { return Result[T, E]{tag: ResultErr, err: error} }

func (result Result[T, E]) Tag() uint8 { return result.tag }
func (result Result[T, E]) Ok() T      { return result.ok }
func (result Result[T, E]) Err() E     { return result.err }
