// Package export_wit_world is what the bindings call for each message.
package export_wit_world

import (
	"hapax/internal/types"
	wit "hapax/internal/wit/hapax_handler_types"
)

// Handler is set before the first message comes.
var Handler func(wit.Message) types.Result[types.Unit, wit.Failure]

func Handle(message wit.Message) types.Result[types.Unit, wit.Failure] { return Handler(message) }
