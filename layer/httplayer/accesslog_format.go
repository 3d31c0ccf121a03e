package httplayer

import (
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// apache appends the entry in Apache's common log format.
func (e *accessEntry) apache(b []byte) []byte {
	r := e.request
	b = append(plain(b, r.RemoteAddr), ' ')
	b = append(plain(b, e.id), " - ["...)
	b = append(e.began.UTC().AppendFormat(b, time.RFC3339Nano), "] \""...)
	b = append(escaped(b, r.Method), ' ')
	b = append(uri(b, r, escaped), ' ')
	b = append(escaped(b, r.Proto), "\" "...)
	b = append(strconv.AppendInt(b, int64(e.status()), 10), ' ')
	if e.exchange.hijacked {
		return append(b, '-')
	}
	return strconv.AppendInt(b, e.written.Load(), 10)
}

// json appends the entry as an object. Its order is that of the names.
func (e *accessEntry) json(b []byte) []byte {
	r := e.request
	head := e.head
	if head.IsZero() {
		head = e.ended
	}
	b = text(append(b, `{"client.addr":`...), r.RemoteAddr)
	b = text(append(b, `,"client.id":`...), orDash(e.id))
	b = text(append(b, `,"host":`...), hostOf(r))
	b = text(append(b, `,"method":`...), r.Method)
	b = number(append(b, `,"processing_ns":`...), int64(head.Sub(e.began)))
	b = e.length(append(b, `,"request_bytes":`...), e.read.Load())
	b = e.length(append(b, `,"response_bytes":`...), e.written.Load())
	b = strconv.AppendInt(append(b, `,"status":`...), int64(e.status()), 10)
	b = append(e.began.UTC().AppendFormat(append(b, `,"timestamp":"`...), time.RFC3339Nano), '"')
	b = number(append(b, `,"total_ns":`...), int64(e.ended.Sub(e.began)))
	b = text(append(b, `,"trace_id":`...), traceOf(r.Header))
	b = append(uri(append(b, `,"uri":"`...), r, inText), '"')
	b = text(append(b, `,"user_agent":`...), r.Header.Get("User-Agent"))
	b = text(append(b, `,"version":`...), r.Proto)
	return append(b, '}')
}

// length is that of a body, if it is known.
func (e *accessEntry) length(b []byte, n int64) []byte {
	if e.exchange.hijacked {
		return append(b, `""`...)
	}
	return number(b, n)
}

func number(b []byte, n int64) []byte {
	return append(strconv.AppendInt(append(b, '"'), n, 10), '"')
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// uri appends the target of r in its absolute form.
func uri(b []byte, r *http.Request, as func([]byte, string) []byte) []byte {
	if strings.HasPrefix(r.RequestURI, "/") {
		b = append(b, Accessor{}.Scheme(r)+"://"...)
		b = as(b, hostOf(r))
	}
	return as(b, r.RequestURI)
}

// traceOf is the id by which others know the request.
func traceOf(h http.Header) string {
	if id := h.Get("X-B3-Traceid"); id != "" {
		return id
	}
	if parts := strings.Split(h.Get("Traceparent"), "-"); len(parts) >= 4 {
		return parts[1]
	}
	if id := h.Get("X-Request-ID"); id != "" {
		return id
	}
	return h.Get("X-Amzn-Trace-Id")
}

const hexDigits = "0123456789abcdef"

// plain appends s as one word.
func plain(b []byte, s string) []byte {
	at := len(b)
	b = escaped(b, orDash(s))
	for i := at; i < len(b); i++ {
		if b[i] == ' ' {
			b[i] = '_'
		}
	}
	return b
}

// escaped appends s as Apache writes what clients say: nothing in it ends the
// quotes, or the line.
func escaped(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c >= 0x7f:
			b = append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}

// text appends s as a string of JSON.
func text(b []byte, s string) []byte { return append(inText(append(b, '"'), s), '"') }

// inText appends what is between the quotes.
func inText(b []byte, s string) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if control := r < 0xa0 || r == 0x2028 || r == 0x2029; control || r == utf8.RuneError && n == 1 {
				b = append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
			} else {
				b = append(b, s[i:i+n]...)
			}
			i += n
			continue
		}
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			b = append(b, c)
		}
		i++
	}
	return b
}
