package messages

import "strings"

var (
	statusLines = []string{
		"HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found", "HTTP/1.1 204 No Content", "HTTP/1.1 304 Not Modified", "HTTP/1.1 301 Moved Permanently", "HTTP/1.1 500 Internal Server Error", "HTTP/1.1 206 Partial Content",
		"HTTP/1.1 201 Created", "HTTP/1.1 205 Reset Content", "HTTP/1.1 403 Forbidden", "HTTP/1.1 418 I'm a teapot", "HTTP/1.1 451 Unavailable For Legal Reasons", "HTTP/1.0 200 OK", "HTTP/1.1 200 ", "HTTP/1.1 200 Fine, thanks", "HTTP/1.1 503 Service Unavailable",
	}
	sloppyStatusLines = []string{
		"HTTP/1.1 200", "HTTP/1.1  200 OK", "HTTP/1.1 200  two", "HTTP/1.1 200 OK ", "HTTP/1.1 200 caf\xc3\xa9", "HTTP/1.1 200 latin\xe9", "HTTP/1.1 200 a\tb", "HTTP/1.1 200\tOK", "HTTP/1.1\t200 OK", "HTTP/1.1 200 a\x01b", "HTTP/1.1 200 a\x00b", "HTTP/1.1 200 a\x7fb", "HTTP/1.1 200 a\rb",
		"HTTP/1.2 200 OK", "HTTP/1.9 200 OK", "HTTP/2.0 200 OK", "HTTP/2 200", "HTTP/0.9 200 OK", "http/1.1 200 OK", "HTTP/1.10 200 OK", "HTTP/1 200 OK", "HTTP/01.1 200 OK", "HTTPS/1.1 200 OK", "ICY 200 OK", "HTTP 200 OK", "200 OK", "", " HTTP/1.1 200 OK",
		"HTTP/1.1 99 x", "HTTP/1.1 099 x", "HTTP/1.1 000 x", "HTTP/1.1 20 x", "HTTP/1.1 2000 x", "HTTP/1.1 2xx x", "HTTP/1.1 +200 x", "HTTP/1.1 -200 x", "HTTP/1.1 200OK", "HTTP/1.1 200;x", "HTTP/1.1 600 x", "HTTP/1.1 700 x", "HTTP/1.1 999 x", "HTTP/1.1 299 Odd", "HTTP/1.1 419 Odd", "HTTP/1.1 599 Odd",
		"HTTP/1.1 OK", "HTTP/1.1", "HTTP/1.1 200 " + strings.Repeat("r", 2000), "HTTP/1.1 101 Switching Protocols", "HTTP/1.1 200 OK\r", "HTTP/1.1 226 IM Used", "HTTP/1.1 200 <b>\"x\"</b>", "HTTP/1.1 200 200", "HTTP/1.1 401 unauthorized",
	}
	responseFields = append([]string{
		"Set-Cookie: a=b\r\nSet-Cookie: c=d; Path=/\r\n", "Content-Type: text/html; charset=utf-8\r\n", "Date: Mon, 01 Jan 2024 00:00:00 GMT\r\n", "Server: x\r\n", "ETag: \"e\"\r\n", "Location: http://other/x?y#z\r\n", "Vary: Accept\r\nVary: Origin\r\n", "WWW-Authenticate: Basic realm=\"r\"\r\n",
		"Cache-Control: no-store\r\n", "Content-Encoding: gzip\r\n",
	}, fields...)
	sloppyResponseFields = append([]string{
		"Location: /caf\xc3\xa9\r\n", "Location: /a b|\r\n", "Content-Type:\r\n", "Content-Type: a\r\nContent-Type: b\r\n", "Date: x\r\n", "Date: a\r\nDate: b\r\n", "Location: a\r\nLocation: b\r\n", "ETag: W/e\r\n", "Host: x\r\n", "Set-Cookie: caf\xc3\xa9=\x01\r\n", "Status: 404 Not Found\r\n",
	}, sloppyFields...)
	responseConnections = []string{
		"", "", "", "Connection: close\r\n", "Connection: keep-alive\r\nKeep-Alive: timeout=5, max=3\r\n", "Connection: X-Hop\r\nX-Hop: 1\r\n", "Trailer: X-T\r\n",
	}
	sloppyResponseConnections = []string{
		"Connection: CLOSE\r\n", "Connection:\r\n", "Connection: , close ,,\r\n", "Connection: keep-alive, close\r\n", "Connection: close\r\nConnection: keep-alive\r\n", "Connection: Content-Type\r\n", "Proxy-Connection: close\r\n", "Keep-Alive: 300\r\n", "Upgrade: h2,h2c\r\n", "Connection: Upgrade\r\nUpgrade: h2c\r\n", "Upgrade: websocket\r\n",
		"Expect: 100-continue\r\n", "TE: x\r\n", "Trailer: Content-Length\r\n", "Via: 1.0 x\r\n", "Connection: \xff\r\n",
	}
	informs = []string{
		"HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n", "HTTP/1.1 102 Processing\r\n\r\n", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 3), strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 8), strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 3),
		"HTTP/1.1 199 Odd\r\n\r\n", "HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n", "HTTP/1.0 100 Continue\r\n\r\n", "HTTP/1.1 100\r\n\r\n", "HTTP/1.1 100 Continue\n\n", "HTTP/1.1 103 Early Hints\r\nTransfer-Encoding: chunked\r\n\r\n", "\r\n", "\r\n\r\n", "\n", " ", "x\r\n", "\x00",
		strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 40), "HTTP/1.1 103 Early Hints\r\nnocolon\r\n\r\n",
	}
)

// responseParts contains the sloppy values for each part of a response.
var responseParts = map[string][]string{
	"status": sloppyStatusLines, "field": sloppyResponseFields, "connection": sloppyResponseConnections,
	"length": sloppyLengths, "framing": sloppyFramings, "coding": sloppyCodings, "chunks": sloppyChunks, "inform": informs, "end": sloppyEnds,
	"after": append([]string{"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"}, sloppyAfters...),
}

// newResponse generates the response with this number.
func newResponse(number uint64) message {
	s := newSource(number, responseParts)
	m := message{method: "GET", end: closes}
	if s.chance(8) {
		m.method = "HEAD"
		s.drawn = append(s.drawn, "HEAD")
	}
	status := s.draw("status", statusLines, sloppyStatusLines)
	header := s.draw("field", responseFields, sloppyResponseFields) + s.draw("connection", responseConnections, sloppyResponseConnections)
	for s.chance(2) {
		header += s.draw("another field", responseFields, nil)
	}
	framing, body := s.drawBody()
	if framing == "" && s.single == nil {
		body = []string{"", "hello", "hello, until the end"}[s.IntN(3)]
	}
	complete := framing != "" && !s.sloppy["length"] && !s.sloppy["framing"] && !s.sloppy["coding"] && !s.sloppy["chunks"]
	if m.method == "HEAD" || strings.Contains(status, " 204") || strings.Contains(status, " 304") {
		complete = true
		if !s.chance(6) {
			body = ""
		}
	}
	head := s.drawHead(status, header+framing)
	if s.sloppy["inform"] {
		head = s.draw("inform", nil, informs) + head
	}
	m.input = []byte(head + body + s.draw("after", afters, responseParts["after"]))
	if complete && !s.sloppy["end"] && s.chance(2) {
		m.end = holds
		s.drawn = append(s.drawn, "held open")
	}
	m.name = s.name(number)
	return m
}
