// Package log writes lines into the host's log; those of a run that is rolled back appear at level debug.
//
// Fields follow the message in pairs of a name and a value, as in log/slog: log.Info("booked", "account", account).
package log

import (
	"fmt"

	"hapax/internal/types"
	wit "hapax/internal/wit/hapax_handler_log"
	levels "hapax/internal/wit/hapax_handler_types"
)

func Trace(message string, fields ...any) { write(levels.LevelTrace, message, fields) }
func Debug(message string, fields ...any) { write(levels.LevelDebug, message, fields) }
func Info(message string, fields ...any)  { write(levels.LevelInfo, message, fields) }
func Warn(message string, fields ...any)  { write(levels.LevelWarn, message, fields) }
func Error(message string, fields ...any) { write(levels.LevelError, message, fields) }

func write(level wit.Level, message string, fields []any) {
	pairs := make([]types.Tuple2[string, string], 0, (len(fields)+1)/2)
	for index := 0; index < len(fields); index += 2 {
		pair := types.Tuple2[string, string]{F0: fmt.Sprint(fields[index])}
		if index+1 < len(fields) {
			pair.F1 = fmt.Sprint(fields[index+1])
		}
		pairs = append(pairs, pair)
	}
	wit.Write(level, message, pairs)
}
