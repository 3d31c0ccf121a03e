package httplayer

import (
	"regexp"
	"strconv"
	"strings"
)

// strict is a parser of requests that has nothing in common with guardScan: it
// has all bytes before it, and regular expressions.
type strict struct {
	Line, Head, Size *regexp.Regexp
}

func newStrict() *strict {
	const token = "[!#$%&'*+\\-.^_`|~0-9A-Za-z]+"
	const quoted = `"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*"`
	const field = token + `:[^\x00-\x08\x0a-\x1f\x7f]*\r\n`
	bin := func(s string) *regexp.Regexp { return regexp.MustCompile(`\A(?s:` + s + `)`) }
	return &strict{
		Line: bin(`(?:\r\n)?(` + token + `) ([^\x00-\x20\x7f]+) HTTP/1\.([01])\r\n`),
		Head: bin(`((?:` + field + `)*)\r\n`),
		Size: bin(`([0-9a-fA-F]{1,16})((?:;` + token + `(?:=(?:` + token + `|` + quoted + `))?)*)\r\n`),
	}
}

// latin is b with a rune for each byte: what regular expressions are made for.
func latin(b []byte) string {
	var s strings.Builder
	for _, c := range b {
		s.WriteRune(rune(c))
	}
	return s.String()
}

// message is one request that strict found.
type message struct {
	Method, Target string
	End            int // where it ends in the bytes
	Framings       int
	Body           string
}

// parse returns the requests in b, and whether what is behind them is wrong in
// any case, whatever may follow.
func (st *strict) parse(b []byte) (found []message, wrong bool) {
	text := []rune(latin(b))
	at := 0
	for at < len(text) {
		m, n, ok := st.one(string(text[at:]))
		if !ok {
			rest := string(text[at:])
			return found, strings.Contains(strings.TrimPrefix(rest, "\r\n"), "\r\n\r\n") && n == 0
		}
		at += n
		m.End = at
		found = append(found, m)
	}
	return found, false
}

// one parses a request at the beginning of s. If it is not ok and n is 0, then
// the head is wrong, or not whole; if n is not, then the body is.
func (st *strict) one(s string) (m message, n int, ok bool) {
	line := st.Line.FindStringSubmatch(s)
	if line == nil {
		return m, 0, false
	}
	m.Method, m.Target = line[1], line[2]
	rest := s[len(line[0]):]
	head := st.Head.FindStringSubmatch(rest)
	if head == nil {
		return m, 0, false
	}
	rest = rest[len(head[0]):]
	f, ok := fieldsOf(head[1])
	if !ok || !f.agree(m, line[3] == "0") {
		return m, 0, false
	}
	m.Framings = len(f.lengths) + len(f.codings)
	if len(f.codings) == 1 {
		m.Body, rest, ok = st.chunks(rest)
	} else if len(f.lengths) == 1 {
		var length int64
		length, _ = strconv.ParseInt(strings.TrimLeft(f.lengths[0], " "), 10, 64)
		if ok = int64(len([]rune(rest))) >= length; ok {
			r := []rune(rest)
			m.Body, rest = string(r[:length]), string(r[length:])
		}
	}
	return m, len([]rune(s)) - len([]rune(rest)), ok
}

// framing is what the fields say.
type framing struct{ lengths, codings, hosts []string }

func fieldsOf(head string) (f framing, ok bool) {
	for line := range strings.SplitSeq(strings.TrimSuffix(head, "\r\n"), "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		plain := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
		switch plain {
		case "content-length":
			f.lengths = append(f.lengths, value)
		case "transfer-encoding":
			f.codings = append(f.codings, value)
		case "host":
			f.hosts = append(f.hosts, value)
		default:
			continue
		}
		if strings.Contains(name, "_") {
			return f, false
		}
	}
	return f, true
}

// agree reports whether the fields leave one reading.
func (f framing) agree(m message, http10 bool) bool {
	connect := m.Method == "CONNECT"
	if len(f.lengths)+len(f.codings) > 1 || len(f.hosts) > 1 {
		return false
	}
	for _, c := range f.codings {
		if http10 || connect || !strings.EqualFold(strings.TrimLeft(c, " "), "chunked") || strings.Contains(c, "\u212a") {
			return false
		}
	}
	for _, l := range f.lengths {
		l = strings.TrimLeft(l, " ")
		n, err := strconv.ParseInt(l, 10, 64)
		if err != nil || l[0] == '+' || l[0] == '-' || len(l) > 19 || connect && n > 0 {
			return false
		}
	}
	for i, h := range f.hosts {
		f.hosts[i] = strings.Trim(h, " \t")
		if !regexp.MustCompile(`\A[A-Za-z0-9\-._~:\[\]%!$&'()*+;=]*\z`).MatchString(f.hosts[i]) {
			return false
		}
	}
	if len(f.hosts) == 0 && !http10 && !connect {
		return false
	}
	return connect || strings.HasPrefix(m.Target, "/") || strings.HasPrefix(m.Target, "*") || f.same(m.Target)
}

// same reports whether an absolute target and Host name the same host.
func (f framing) same(target string) bool {
	parts := regexp.MustCompile(`\A([^/?#]+)://([^/?#]+)`).FindStringSubmatch(target)
	if parts == nil || len(parts[0]) > 300 {
		return false
	}
	if !regexp.MustCompile(`\A[A-Za-z0-9\-._~:\[\]%!$&'()*+;=]+\z`).MatchString(parts[2]) {
		return false
	}
	port := map[string]string{"http": ":80", "https": ":443"}[strings.ToLower(parts[1])]
	for _, h := range f.hosts {
		if len(h) > 300 || !strings.EqualFold(strings.TrimSuffix(h, port), strings.TrimSuffix(parts[2], port)) {
			return false
		}
	}
	return true
}

// chunks parses a chunked body.
func (st *strict) chunks(s string) (body, rest string, ok bool) {
	for {
		size := st.Size.FindStringSubmatch(s)
		if size == nil || len(size[2]) > extensionMost {
			return "", s, false
		}
		s = s[len(size[0]):]
		n, err := strconv.ParseInt(size[1], 16, 64)
		if err != nil {
			return "", s, false
		}
		if n == 0 {
			break
		}
		r := []rune(s)
		if int64(len(r)) < n+2 || string(r[n:n+2]) != "\r\n" {
			return "", s, false
		}
		body += string(r[:n])
		s = string(r[n+2:])
	}
	trailers := st.Head.FindStringSubmatch(s)
	if trailers == nil {
		return "", s, false
	}
	f, ok := fieldsOf(trailers[1])
	if !ok || len(f.lengths)+len(f.codings)+len(f.hosts) > 0 {
		return "", s, false
	}
	return body, s[len(trailers[0]):], true
}
