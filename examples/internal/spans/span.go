// Package spans sends spans of requests to an OTLP receiver, for the gateway and the proxy. It
// does not use OpenTelemetry's SDK: a dependency in this module's go.mod could raise the SDK's
// version in every program that imports the module.
package spans

import (
	"strings"
	"time"
)

// Kind is a span's kind in OTLP.
type Kind int

// Server is for a request from a client, and Client for an attempt.
const (
	Server Kind = 2
	Client Kind = 3
)

// Span describes a request or an attempt.
type Span struct {
	Context

	Kind       Kind
	Name       string
	Start, End time.Time
	Attributes []Attribute
	Failure    string // error text; "" if the request succeeded
}

// Set adds an attribute.
func (s *Span) Set(key, value string) { s.Attributes = append(s.Attributes, String(key, value)) }

// SetInt adds an attribute with a number.
func (s *Span) SetInt(key string, value int) { s.Attributes = append(s.Attributes, Int(key, value)) }

// Attribute describes a span or the program. See [String] and [Int].
type Attribute struct {
	// An attribute is a text, or a number if isNumber.
	key, text string
	number    int64
	isNumber  bool
}

// maxValue is the longest attribute value in bytes. Without it, a path of 64 KiB could take up
// memory several times until its span is sent.
const maxValue = 1024

// String returns an attribute with a text, which is cut off after 1024 bytes.
func String(key, value string) Attribute { return Attribute{key: key, text: shorten(value)} }

// Int returns an attribute with an integer.
func Int(key string, value int) Attribute {
	return Attribute{key: key, number: int64(value), isNumber: true}
}

// shorten returns the first maxValue bytes of text. It copies them, so that the rest can be
// freed.
func shorten(text string) string {
	if len(text) > maxValue {
		return strings.Clone(text[:maxValue])
	}
	return text
}
