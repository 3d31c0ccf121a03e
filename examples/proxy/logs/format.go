package logs

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// writePlain appends r to b in the text format of linkerd's proxy. The thread number is
// always 1, because Go does not report it.
func writePlain(b []byte, h *handler, r slog.Record) []byte {
	at := r.Time
	if at.IsZero() {
		at = time.Now()
	}
	b = fmt.Appendf(b, "[%10.6fs] %5s ThreadId(01) %s: %s",
		at.Sub(h.start).Seconds(), levelName(r.Level), oneLine(h.target), oneLine(r.Message))
	for _, f := range h.of(r) {
		b = append(b, ' ')
		b = append(b, oneLine(f.key)...)
		b = append(b, '=')
		b = appendText(b, text(f.value))
	}
	return b
}

// oneLine escapes the unprintable characters of s, such as line breaks. Otherwise a
// message with a line break could forge another record.
func oneLine(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// unprintable reports whether the character r must be escaped in a record.
func unprintable(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }

// appendText appends s to b. It adds quotes if s is empty, or contains a space, a quote,
// "=" or an unprintable character.
func appendText(b []byte, s string) []byte {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unprintable(r) || r == ' ' || r == '"' || r == '=' }) {
		return strconv.AppendQuote(b, s)
	}
	return append(b, s...)
}

// text returns v as text. For an error it returns the result of errorText.
func text(v slog.Value) string {
	if err, ok := v.Any().(error); ok && v.Kind() == slog.KindAny {
		return errorText(err)
	}
	return v.String()
}

// errorText returns the text of err. If its method Error panics, errorText returns a
// description of the panic, or <nil> for a nil pointer, as slog's handlers do.
func errorText(err error) (s string) {
	defer func() {
		if r := recover(); r != nil {
			if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
				s = "<nil>"
			} else {
				s = fmt.Sprintf("!PANIC: %v", r)
			}
		}
	}()
	return err.Error()
}

// record has the fields of one log record, as linkerd's proxy writes it in JSON.
type record struct {
	Timestamp string   `json:"timestamp"`
	Level     string   `json:"level"`
	Fields    fields   `json:"fields"`
	Target    string   `json:"target"`
	Spans     []string `json:"spans"`
	ThreadID  string   `json:"threadId"`
}

// fields is a JSON object with fields in a fixed order. The message is the first field.
type fields []field

// MarshalJSON is part of [json.Marshaler]. It encodes fs as an object.
func (fs fields) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range fs {
		if i > 0 {
			b = append(b, ',')
		}
		key, err := json.Marshal(f.key)
		if err != nil {
			return nil, err
		}
		b = append(append(b, key...), ':')
		b = append(b, valueJSON(f.value)...)
	}
	return append(b, '}'), nil
}

// valueJSON encodes v as JSON: a number or boolean as itself, and any other value as a
// string.
func valueJSON(v slog.Value) []byte {
	switch v.Kind() {
	case slog.KindBool, slog.KindInt64, slog.KindUint64, slog.KindFloat64:
		if b, err := json.Marshal(v.Any()); err == nil {
			return b
		}
	case slog.KindTime:
		v = slog.StringValue(v.Time().UTC().Format(time.RFC3339Nano))
	case slog.KindAny, slog.KindString, slog.KindDuration, slog.KindGroup, slog.KindLogValuer:
	}
	b, err := json.Marshal(text(v))
	if err != nil { // does not happen for a string
		return strconv.AppendQuote(nil, err.Error())
	}
	return b
}

// writeJSON appends r to b in the JSON format of linkerd's proxy.
func writeJSON(b []byte, h *handler, r slog.Record) []byte {
	at := r.Time
	if at.IsZero() {
		at = time.Now()
	}
	all := append(fields{{"message", slog.StringValue(r.Message)}}, h.of(r)...)
	line, err := json.Marshal(record{
		Timestamp: at.UTC().Format(time.RFC3339Nano), Level: levelName(r.Level), Fields: all,
		Target: h.target, Spans: []string{}, ThreadID: "ThreadId(1)",
	})
	if err != nil {
		line = strconv.AppendQuote(nil, "log: "+err.Error())
	}
	return append(b, line...)
}
