// Package config reads the handler's own table `config`: strings as written, any other value as JSON text.
package config

import (
	"fmt"

	"hapax/internal/types"
	wit "hapax/internal/wit/hapax_handler_config"
)

// Get returns the value of that name, and whether there is one.
func Get(name string) (string, bool) {
	value := wit.Get(name)
	return value.Some(), value.Tag() == types.OptionSome
}

// Names returns all names.
func Names() []string { return wit.Names() }

// Require returns the value of that name, or an error if there is none.
func Require(name string) (string, error) {
	value, found := Get(name)
	if !found {
		return "", fmt.Errorf("the handler's table `config` has no `%s`", name)
	}
	return value, nil
}
