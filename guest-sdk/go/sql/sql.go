// Package sql runs SQL inside the message's own transaction. There is nothing to open, begin or commit.
//
// Parameters are $1, $2, ... on both databases. Each is sent as the type that the database expects at its place. It may be nil, a bool, an
// integer, a float, a string, a []byte, a time.Time (a moment), a json.RawMessage, one of the types of this package, whatever has a method
// MarshalText (sent as text), a pointer to any of these (nil is NULL), or a slice of them (an array).
package sql

import (
	"fmt"
	"iter"

	"hapax/internal/host"
	wit "hapax/internal/wit/hapax_handler_sql"
)

// How many rows a cursor is asked for at a time; the host gives fewer where they are large.
const portion = 1000

// Execute runs one statement. Returns how many rows it affected.
func Execute(statement string, params ...any) (int, error) {
	values, err := toParams(params, "")
	if err != nil {
		return 0, err
	}
	affected, err := host.Call(wit.Execute(statement, values))
	return int(affected), err
}

// ExecuteMany runs one statement once for each row of parameters, in order. Returns how many rows each affected.
func ExecuteMany(statement string, rows [][]any) ([]int, error) {
	many := make([][]wit.Value, len(rows))
	for number, params := range rows {
		values, err := toParams(params, fmt.Sprintf("row %d, ", number))
		if err != nil {
			return nil, err
		}
		many[number] = values
	}
	affected, err := host.Call(wit.ExecuteMany(statement, many))
	if err != nil {
		return nil, err
	}
	counts := make([]int, len(affected))
	for index, count := range affected {
		counts[index] = int(count)
	}
	return counts, nil
}

// Query runs one statement and returns all of its rows.
//
// T is a struct, whose fields get the columns of their names (in any case of the letters and without `_`, or as the tag `sql:"name"` says), a
// [Row], or, for a single column, the type of its value. A pointer is nil for NULL. What does not fit is an error that names column and field.
func Query[T any](statement string, params ...any) ([]T, error) {
	values, err := toParams(params, "")
	if err != nil {
		return nil, err
	}
	found, err := host.Call(wit.Query(statement, values))
	if err != nil {
		return nil, err
	}
	read, err := readerOf[T](found.Columns)
	if err != nil {
		return nil, err
	}
	rows := make([]T, len(found.Rows))
	for index, row := range found.Rows {
		if err := read(row, &rows[index]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// QueryOptional returns the only row, or nil. More than one are an error.
func QueryOptional[T any](statement string, params ...any) (*T, error) {
	rows, err := Query[T](statement, params...)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	if len(rows) > 1 {
		return nil, fmt.Errorf("the query gave %d rows, where at most one is expected", len(rows))
	}
	return &rows[0], nil
}

// QueryOne returns the only row. None and more than one are errors.
func QueryOne[T any](statement string, params ...any) (T, error) {
	row, err := QueryOptional[T](statement, params...)
	if err == nil && row == nil {
		err = fmt.Errorf("the query gave no row, where one is expected")
	}
	if err != nil {
		var none T
		return none, err
	}
	return *row, nil
}

// Each goes through any number of rows by a cursor; other statements may run meanwhile. After an error it ends.
func Each[T any](statement string, params ...any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		values, err := toParams(params, "")
		if err != nil {
			yield(none, err)
			return
		}
		cursor, err := host.Call(wit.OpenCursor(statement, values))
		if err != nil {
			yield(none, err)
			return
		}
		defer cursor.Drop()
		read, err := readerOf[T](cursor.Columns())
		if err != nil {
			yield(none, err)
			return
		}
		for {
			rows, err := host.Call(cursor.Fetch(portion))
			if err != nil {
				yield(none, err)
				return
			}
			if len(rows) == 0 {
				return
			}
			for _, values := range rows {
				var row T
				err := read(values, &row)
				if !yield(row, err) || err != nil {
					return
				}
			}
		}
	}
}

// Savepoint runs `work`. If it returns an error or panics, all that it did is undone, messages published among it, and the error goes on.
func Savepoint(work func() error) error {
	place, err := host.Call(wit.BeginSavepoint())
	if err != nil {
		return err
	}
	defer place.Drop()
	ended := false
	defer func() {
		if !ended {
			// It panics: how this ends decides about nothing any more.
			place.Rollback()
		}
	}()
	err = work()
	ended = true
	if err == nil {
		_, err = host.Call(place.Release())
		return err
	}
	if _, failed := host.Call(place.Rollback()); failed != nil {
		return fmt.Errorf("%w (and the savepoint cannot be undone: %w)", err, failed)
	}
	return err
}
