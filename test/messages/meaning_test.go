package messages

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// meaning is what a message says, without what a proxy may change: the version, the spelling of
// names, the order of fields, the form of the target, and the body's framing.
type meaning struct {
	Method    string `json:"method"`
	Target    string `json:"target"` // path and query
	Authority string `json:"authority"`

	Status int    `json:"status"`
	Reason string `json:"reason"`
	Whole  bool   `json:"whole"` // the body of a response did not end early

	Fields   map[string][]string `json:"fields"` // by names in lower case, without those of the connection
	Names    []string            `json:"names"`  // of all fields, in the order of the message; unknown if a parser read it
	Body     string              `json:"body"`
	Trailers map[string][]string `json:"trailers"`
}

// hop contains the fields that belong to a connection, or that a proxy sets itself.
var hop = []string{
	"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings",
	"expect", "content-length", "host", "server", "date", "via",
}

// without returns fields without those in hop.
func without(fields map[string][]string) map[string][]string {
	fields = maps.Clone(fields)
	for _, name := range hop {
		delete(fields, name)
	}
	return fields
}

// sameCore reports whether two messages say the same, apart from their fields.
func (m meaning) sameCore(o meaning) bool {
	return m.Method == o.Method && m.Target == o.Target && m.Authority == o.Authority &&
		m.Status == o.Status && m.Whole == o.Whole && m.Body == o.Body
}

// difference describes how m differs from what a and b agree on, or returns "" if it does not. a
// and b have the same core.
func (m meaning) difference(a, b meaning) string {
	switch {
	case !m.sameCore(a):
		return "is " + m.core() + " instead of " + a.core()
	case a.Reason == b.Reason && m.Reason != a.Reason:
		return fmt.Sprintf("has the reason %q instead of %q", m.Reason, a.Reason)
	}
	if d := differentFields(m.Fields, a.Fields, b.Fields); d != "" {
		return d
	}
	if d := differentOrder(m, a, b); d != "" {
		return d
	}
	if d := differentFields(m.Trailers, a.Trailers, b.Trailers); d != "" {
		return "in the trailers " + d
	}
	return ""
}

func differentFields(m, a, b map[string][]string) string {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if slices.Equal(a[name], b[name]) && !slices.Equal(m[name], a[name]) {
			return fmt.Sprintf("has %q: %.200q instead of %.200q", name, m[name], a[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if a[name] == nil && b[name] == nil {
			return fmt.Sprintf("has %q: %.200q, which the others leave out", name, m[name])
		}
	}
	return ""
}

// differentOrder describes how the order of m's first 100 fields differs from that in both a and b.
func differentOrder(m, a, b meaning) string {
	order := func(x meaning) (names []string) {
		for _, name := range x.Names {
			if a.Fields[name] != nil && b.Fields[name] != nil && m.Fields[name] != nil && !slices.Contains(names, name) && len(names) < 100 {
				names = append(names, name)
			}
		}
		return names
	}
	if slices.Equal(order(a), order(b)) && !slices.Equal(order(m), order(a)) {
		return fmt.Sprintf("has the order %.500q instead of %.500q", order(m), order(a))
	}
	return ""
}

func (m meaning) core() string {
	body := m.Body
	if len(body) > 60 {
		body = body[:60] + "..."
	}
	if m.Status > 0 {
		return fmt.Sprintf("%d, whole %v, body %q (%d)", m.Status, m.Whole, body, len(m.Body))
	}
	return fmt.Sprintf("%s %.200q at %q, body %q (%d)", m.Method, m.Target, m.Authority, body, len(m.Body))
}

var errShort = errors.New("the message ends early")

// parseRequest parses one request as a strict reader does. The proxies should never send anything
// else, so that is an error.
func parseRequest(raw []byte) (meaning, error) {
	var m meaning
	line, rest, ok := bytes.Cut(raw, []byte("\r\n"))
	method, after, ok1 := strings.Cut(string(line), " ")
	end := strings.LastIndexByte(after, ' ')
	if !ok || !ok1 || end < 0 || !strings.HasPrefix(after[end+1:], "HTTP/1.") {
		return m, fmt.Errorf("request line %q", line)
	}
	m.Method, m.Target, m.Whole = method, after[:end], true
	fields, names, rest, err := parseFields(rest)
	m.Names = names
	if err != nil {
		return m, err
	}
	if hosts := fields["host"]; len(hosts) > 1 {
		return m, fmt.Errorf("hosts %q", hosts)
	} else if len(hosts) == 1 {
		m.Authority = hosts[0]
	}
	m = m.normalized()
	m.Body, m.Trailers, rest, err = parseBody(fields, rest, "")
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes after the request", len(rest))
	}
	m.Fields = without(fields)
	return m, err
}

// normalized replaces a target in absolute form by its path and authority, and removes the
// authority's default port.
func (m meaning) normalized() meaning {
	scheme, rest, ok := strings.Cut(m.Target, "://")
	if _, err := url.Parse(scheme + "://"); ok && err == nil && !strings.ContainsAny(scheme, "/?") {
		end := len(rest)
		if i := strings.IndexAny(rest, "/?"); i >= 0 {
			end = i
		}
		m.Authority, m.Target = rest[:end], rest[end:]
		if !strings.HasPrefix(m.Target, "/") {
			m.Target = "/" + m.Target
		}
	}
	m.Authority = strings.TrimSuffix(m.Authority, ":80")
	return m
}

// parseResponse parses what a proxy sent in response to a request with this method before it closed
// the connection. It separates 1xx responses.
func parseResponse(raw []byte, method string) (m meaning, informs []meaning, err error) {
	for {
		m = meaning{}
		line, rest, ok := bytes.Cut(raw, []byte("\r\n"))
		if !ok || len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[8] != ' ' {
			return m, informs, fmt.Errorf("status line %.60q", line)
		}
		if m.Status, err = strconv.Atoi(string(line[9:12])); err != nil {
			return m, informs, err
		}
		m.Reason = strings.TrimPrefix(string(line[12:]), " ")
		var fields map[string][]string
		if fields, m.Names, rest, err = parseFields(rest); err != nil {
			return m, informs, err
		}
		m.Fields = without(fields)
		if m.Status/100 == 1 && m.Status != 101 {
			informs, raw = append(informs, m), rest
			continue
		}
		if method == "HEAD" || m.Status == 204 || m.Status == 304 {
			if fields["content-length"] != nil && m.Status != 204 {
				m.Fields["content-length"] = fields["content-length"] // describes the response to GET
			}
			m.Whole = len(rest) == 0
			return m, informs, nil
		}
		m.Body, m.Trailers, rest, err = parseBody(fields, rest, "response")
		m.Whole = err == nil && len(rest) == 0
		return m, informs, nil
	}
}

func parseFields(b []byte) (fields map[string][]string, names []string, rest []byte, err error) {
	fields = make(map[string][]string)
	for {
		line, after, ok := bytes.Cut(b, []byte("\r\n"))
		switch {
		case !ok:
			return nil, nil, nil, errShort
		case len(line) == 0:
			return fields, names, after, nil
		}
		name, value, ok := strings.Cut(string(line), ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			return nil, nil, nil, fmt.Errorf("field line %q", line)
		}
		name = strings.ToLower(name)
		names = append(names, name)
		fields[name] = append(fields[name], strings.Trim(value, " \t"))
		b = after
	}
}

// parseBody parses a body. A response body without a length ends with the connection.
func parseBody(fields map[string][]string, b []byte, kind string) (body string, trailers map[string][]string, rest []byte, err error) {
	lengths, codings := fields["content-length"], fields["transfer-encoding"]
	switch {
	case len(codings) > 0 && len(lengths) > 0:
		return "", nil, nil, fmt.Errorf("Content-Length %q and Transfer-Encoding %q", lengths, codings)
	case len(codings) == 1 && strings.EqualFold(codings[0], "chunked"):
		return parseChunks(b)
	case len(codings) > 0:
		return "", nil, nil, fmt.Errorf("Transfer-Encoding %q", codings)
	case len(lengths) == 1:
		n, err := strconv.ParseUint(lengths[0], 10, 32)
		if err != nil {
			return "", nil, nil, err
		}
		if int(n) > len(b) {
			return string(b), nil, nil, errShort
		}
		return string(b[:n]), nil, b[n:], nil
	case len(lengths) > 1:
		return "", nil, nil, fmt.Errorf("Content-Length %q", lengths)
	case kind == "response":
		return string(b), nil, nil, nil
	}
	return "", nil, b, nil
}

func parseChunks(b []byte) (body string, trailers map[string][]string, rest []byte, err error) {
	for {
		line, after, ok := bytes.Cut(b, []byte("\r\n"))
		if !ok {
			return body, nil, nil, errShort
		}
		digits, _, _ := strings.Cut(string(line), ";")
		size, err := strconv.ParseUint(digits, 16, 31)
		if err != nil {
			return body, nil, nil, err
		}
		if size == 0 {
			trailers, _, rest, err = parseFields(after)
			return body, without(trailers), rest, err
		}
		if len(after) < int(size)+2 {
			return body + string(after[:min(len(after), int(size))]), nil, nil, errShort
		}
		if string(after[size:size+2]) != "\r\n" {
			return body, nil, nil, fmt.Errorf("chunk %.60q", after)
		}
		body, b = body+string(after[:size]), after[size+2:]
	}
}
