package messages

import (
	"bytes"
	"regexp"
	"strings"
)

// exception is an accepted kind of finding.
type exception struct {
	name    string
	reason  string // for MESSAGES.md; "" if the exception is about how a peer reads a message
	test    string // the only test in which it applies; "" means both
	check   string // the checks to which it applies
	applies func(f finding) bool
}

// exceptions with a reason are messages that nginx and haproxy forward and that are rejected here.
// The others are messages that are forwarded here and that one of the parsers rejects or reads only
// in part. They cannot be used for an attack.
var exceptions = []exception{
	{
		"control characters in a field value or reason phrase",
		"RFC 9110 forbids them, because servers that take some of them for white space or for the end of a line read another field; linkerd2-proxy, net/http and h11 reject them.",
		"", "not forwarded", headHas("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]"),
	},
	{
		"a Host with one of ``/?#@\\|<>{}\"``",
		"the parsers of URLs do not agree where such a host ends, so that routes and authorization could see another host than the server.",
		"TestRequests", "not forwarded", headHas(`(?im)^host:[^\r\n]*[/?#@\\|<>{}"]`),
	},
	{
		"a Host with an invalid port, or with brackets that enclose no address",
		"the parsers of URLs reject it or read another host, so that routes and authorization could see another host than the server.",
		"TestRequests", "not forwarded",
		headHas(`(?im)^host:[^\r\n]*(\[\]|\[[^\]\r\n]*\r?$|:[^\r\n\]]*[^0-9\r\n\] \t][^\r\n\]]*\r?$|:[0-9]{5,}\r?$)`),
	},
	{
		"LF without CR in the framing of chunks",
		"a proxy in front may take the LF for a part of a chunk extension, and then sees other requests (CVE-2025-22871); linkerd2-proxy, net/http and h11 reject it.",
		"", "not forwarded, different", bodyHas(`(?m)^[0-9a-fA-F]+\n|[^\r]\n0\r?\n|^0\r?\n\n`),
	},
	{
		"folded lines and NUL in trailers",
		"they are rejected as in headers, because a folded line can be read as two fields.",
		"", "not forwarded, different", bodyHas(`\r\n0\r\nX-T: a(\x00|\r\n b)`),
	},
	{
		"a response of HTTP/1.0 with Transfer-Encoding",
		"net/http takes the chunks for the body, nginx and haproxy decode them; RFC 9112, section 6.1, calls the framing faulty.",
		"TestResponses", "not forwarded", headHas(`(?is)HTTP/1\.0 [^1].*\ntransfer-encoding:`),
	},
	{
		"a response without a body, such as that to HEAD, with a Transfer-Encoding other than chunked",
		"it is rejected as in any other response, because a server that adds a body would be read in two ways.",
		"TestResponses", "not forwarded", headHas(`(?im)^transfer-encoding:[ \t]*(chunked,|,chunked|\r?$|xchunked|identity|gzip|chunk(ed[^\r\n]+)?\r?$)`),
	},
	{
		"a response with a list of lengths, such as `Content-Length: 5, 5`",
		"net/http rejects it and linkerd2-proxy reads no length, so that the body would not end at the same byte for all.",
		"TestResponses", "not forwarded", headHas(`(?im)^content-length:.*,`),
	},
	{
		"a status of more than three digits, or without a space after it",
		"a part of it becomes the reason phrase, so that another reader finds another status.",
		"TestResponses", "not forwarded", headHas(`HTTP/1\.[01] \d{3}[^ \r\n]`),
	},

	{"haproxy limits names to 255 bytes", "", "", "not read", reads(haproxy, `(?i)x{300}`)},
	{"haproxy rejects a body of GET, HEAD and DELETE in HTTP/1.0", "", "TestRequests", "not read", reads(haproxy, `^(GET|HEAD|DELETE) \S+ HTTP/1.0\r\n`)},
	{"haproxy and h11 reject targets that are not ASCII", "", "TestRequests", "not read", func(f finding) bool {
		line, _, _ := bytes.Cut(f.m.input, []byte("\r\n"))
		return !strings.HasPrefix(f.text, nginx) && regexp.MustCompile(`[^\x00-\x7f]`).Match(line)
	}},
	{"nginx allows only letters in upper case, - and _ in methods", "", "TestRequests", "not read", reads(nginx, `^[A-Z_-]*[^A-Z_ -]|^TRACE`)},
	{"nginx rejects several Authorization and If-None-Match fields", "", "TestRequests", "not read", reads(nginx, `(?s)\r\n(Authorization: .*\r\nAuthorization: |If-None-Match: .*\r\nIf-None-Match: )`)},
	{"nginx rejects paths that leave the root, %00, and OPTIONS *", "", "TestRequests", "not read", reads(nginx, `^\S+ (\*|\S*(/\.\.|/%2e%2e|%00))`)},
	{"nginx rejects an empty Host, and one with empty labels", "", "TestRequests", "not read", reads(nginx, `\r\nHost: (\r|\.\r|h\.\.i|::1)`)},
	{"net/http limits trailers to 4 KB", "", "", "not read, read differently", reads("net/http", `t{1000}`)},
	{"nginx takes a 1xx response to HEAD for the last response", "", "TestResponses", "not read", reads(nginx, `^HTTP/1.1 1..`)},
	{"nginx keeps the last of several Content-Type fields, and no empty one", "", "TestResponses", "read differently", reads(nginx, `\r\nContent-Type: (\r|[^\r]*\r\nContent-Type: )`)},
}

// in reports whether e applies in a test.
func (e exception) in(test string) bool { return e.test == "" || e.test == test }

// headEnd matches the end of the headers, which include 1xx responses here.
var headEnd = regexp.MustCompile(`^(?s:[\r\n]*(HTTP/1\.\d 1\d\d.*?\r?\n\r?\n)*.*?\r?\n\r?\n)`)

// head returns a message's headers, or all of it if they do not end.
func head(input []byte) []byte {
	if end := headEnd.FindIndex(input); end != nil {
		return input[:end[1]]
	}
	return input
}

// headHas returns a function that reports whether a message's headers match an expression.
func headHas(expression string) func(f finding) bool {
	match := regexp.MustCompile(expression)
	return func(f finding) bool { return match.Match(head(f.m.input)) }
}

// bodyHas returns a function that reports whether what follows the headers matches an expression.
func bodyHas(expression string) func(f finding) bool {
	match := regexp.MustCompile(expression)
	return func(f finding) bool { return match.Match(f.m.input[len(head(f.m.input)):]) }
}

// reads returns a function that reports whether reader cannot read a message that matches an
// expression.
func reads(reader, expression string) func(f finding) bool {
	match := regexp.MustCompile(expression)
	return func(f finding) bool { return strings.HasPrefix(f.text, reader) && match.Match(f.m.input) }
}
