package messages

import "strings"

// row is a message in MESSAGES.md's table.
type row struct {
	title string
	input string
	// element selects what the table shows of the forwarded message. If that is want, the table
	// contains "yes".
	element func(m meaning) string
	want    string
	then    int // requests that are forwarded, without the sentinel; 0 means 1
}

func target(m meaning) string    { return m.Target }
func authority(m meaning) string { return m.Authority }
func body(m meaning) string      { return m.Body }
func reason(m meaning) string    { return m.Reason }
func method(m meaning) string    { return m.Method }

func value(name string) func(m meaning) string {
	return func(m meaning) string {
		if m.Fields[name] == nil {
			return "(left out)"
		}
		return strings.Join(m.Fields[name], " + ")
	}
}

// get returns a request for target.
func get(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n" }

// with returns a request with these header lines.
func with(lines string) string { return "GET / HTTP/1.1\r\nHost: h\r\n" + lines + "\r\n" }

// post returns a request with these framing lines and this body.
func post(lines, body string) string {
	return "POST / HTTP/1.1\r\nHost: h\r\n" + lines + "\r\n" + body
}

func chunked(body string) string { return post("Transfer-Encoding: chunked\r\n", body) }

func hostRow(title, host string) row {
	return row{title: title, input: "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n", element: authority, want: host}
}

func targetRow(title, t string) row {
	return row{title: title, input: get(t), element: target, want: t}
}

func fieldRow(title, lines, name, want string) row {
	return row{title: title, input: with(lines), element: value(name), want: want}
}

const helloChunks = "5\r\nhello\r\n0\r\n\r\n"

var requestRows = []row{
	{title: "CRLF before the request line", input: "\r\n" + get("/"), element: target, want: "/"},
	{title: "CRLF after a body, then the next request", input: post("Content-Length: 5\r\n", "hello\r\n") + get("/next"), element: target, want: "/next", then: 2},
	{title: "CR before the request line", input: "\r" + get("/"), element: target, want: "/"},
	{title: "all lines end with LF", input: "GET / HTTP/1.0\nHost: h\n\n", element: target, want: "/"},
	{title: "one field line ends with LF", input: with("X-A: v\nX-B: w\r\n"), element: value("x-b"), want: "w"},
	{title: "CR without LF in a field value", input: with("X-A: a\rb\r\n"), element: value("x-a"), want: "a\rb"},
	{title: "two spaces before the version", input: "GET /  HTTP/1.1\r\nHost: h\r\n\r\n", element: target, want: "/"},
	{title: "space after the version", input: "GET / HTTP/1.1 \r\nHost: h\r\n\r\n", element: target, want: "/"},
	{title: "`HTTP/1.2`", input: "GET / HTTP/1.2\r\nHost: h\r\n\r\n", element: target, want: "/"},
	{title: "`HTTP/2.0`", input: "GET / HTTP/2.0\r\nHost: h\r\n\r\n", element: target, want: "/"},
	{title: "no version (HTTP/0.9)", input: "GET /\r\n\r\n", element: target, want: "/"},
	{title: "method in lower case", input: "get / HTTP/1.1\r\nHost: h\r\n\r\n", element: method, want: "get"},
	{title: "unknown method `PURGE`", input: "PURGE / HTTP/1.1\r\nHost: h\r\n\r\n", element: method, want: "PURGE"},

	targetRow("target `/café` in UTF-8", "/caf\xc3\xa9"),
	targetRow("target with a byte that is not UTF-8", "/caf\xe9"),
	targetRow("target ``/\\|^{}\"\\<>` ``", "/|^{}\"\\<>`"),
	targetRow("target `/[x]?a[]=1`", "/[x]?a[]=1"),
	targetRow("target `/%zz`", "/%zz"),
	targetRow("target `/?q=%zz`", "/?q=%zz"),
	targetRow("target `/a%2Fb%20c`", "/a%2Fb%20c"),
	targetRow("target `//a//b`", "//a//b"),
	targetRow("target `/a/../b`", "/a/../b"),
	targetRow("target `/..`", "/.."),
	targetRow("target `/a;b`", "/a;b"),
	targetRow("target `/a#b`", "/a#b"),
	targetRow("target `/a b`", "/a b"),
	targetRow("control character 0x01 in the target", "/a\x01b"),
	targetRow("target of 30 000 bytes", "/"+strings.Repeat("a", 30_000)),
	{title: "absolute target, another Host", input: get("http://other/p"), element: authority, want: "other"},
	{title: "absolute target with user information", input: get("http://u@h/p"), element: authority, want: "u@h"},

	{title: "no Host", input: "GET / HTTP/1.1\r\n\r\n", element: authority},
	{title: "two equal Hosts", input: with("Host: h\r\n"), element: authority, want: "h"},
	{title: "two different Hosts", input: with("Host: i\r\n"), element: authority, want: "h"},
	hostRow("Host `h/x`", "h/x"),
	hostRow("Host `u@h`", "u@h"),
	hostRow("Host `h?x`", "h?x"),
	hostRow("Host `café` in UTF-8", "caf\xc3\xa9"),

	fieldRow("name with an underscore", "X_A: v\r\n", "x_a", "v"),
	fieldRow("space before the colon", "X-A : v\r\n", "x-a", "v"),
	fieldRow("field line without a colon", "nocolon\r\n", "nocolon", ""),
	fieldRow("folded field line", "X-A: a\r\n b\r\n", "x-a", "a b"),
	fieldRow("value in UTF-8", "X-A: caf\xc3\xa9\r\n", "x-a", "caf\xc3\xa9"),
	fieldRow("NUL in a value", "X-A: a\x00b\r\n", "x-a", "a\x00b"),
	fieldRow("control character 0x01 in a value", "X-A: a\x01b\r\n", "x-a", "a\x01b"),
	fieldRow("value of 40 000 bytes", "X-A: "+strings.Repeat("v", 40_000)+"\r\n", "x-a", strings.Repeat("v", 40_000)),
	fieldRow("90 fields", repeat("X-%d: v\r\n", 90), "x-89", "v"),
	fieldRow("field that `Connection` names", "Connection: X-A\r\nX-A: v\r\n", "x-a", "v"),
	{title: "`Expect: 100-continue, other`", input: with("Expect: 100-continue, other\r\n"), element: target, want: "/"},

	{title: "Content-Length and Transfer-Encoding", input: post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", helloChunks), element: body, want: "hello"},
	{title: "two equal Content-Length fields", input: post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), element: body, want: "hello"},
	{title: "two different Content-Length fields", input: post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), element: body, want: "hello"},
	{title: "`Content-Length: +5`", input: post("Content-Length: +5\r\n", "hello"), element: body, want: "hello"},
	{title: "`Content-Length: ` with 25 digits, most of them 0", input: post("Content-Length: 0000000000000000000000005\r\n", "hello"), element: body, want: "hello"},
	{title: "`Transfer-Encoding: gzip, chunked`", input: post("Transfer-Encoding: gzip, chunked\r\n", helloChunks), element: body, want: "hello"},
	{title: "`Transfer-Encoding: Chunked`", input: post("Transfer-Encoding: Chunked\r\n", helloChunks), element: body, want: "hello"},
	{title: "Transfer-Encoding in HTTP/1.0", input: "POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + helloChunks, element: body, want: "hello"},
	{title: "chunk size `5 `", input: chunked("5 \r\nhello\r\n0\r\n\r\n"), element: body, want: "hello"},
	{title: "chunk size with 31 digits, most of them 0", input: chunked(strings.Repeat("0", 30) + "5\r\nhello\r\n0\r\n\r\n"), element: body, want: "hello"},
	{title: "chunk size `0x5`", input: chunked("0x5\r\nhello\r\n0\r\n\r\n"), element: body, want: "hello"},
	{title: "chunk extension", input: chunked("5;a=\"b\"\r\nhello\r\n0\r\n\r\n"), element: body, want: "hello"},
	{title: "LF after the chunk size", input: chunked("5\nhello\r\n0\r\n\r\n"), element: body, want: "hello"},
	{title: "LF after the chunk data", input: chunked("5\r\nhello\n0\r\n\r\n"), element: body, want: "hello"},
	{title: "trailer", input: chunked("5\r\nhello\r\n0\r\nX-T: t\r\n\r\n"), element: func(m meaning) string {
		if m.Trailers["x-t"] == nil {
			return "(left out)"
		}
		return m.Trailers["x-t"][0]
	}, want: "t"},
}

// reply returns a response with this first line and these header lines.
func reply(line, lines, body string) string { return line + "\r\n" + lines + "\r\n" + body }

var responseRows = []row{
	{title: "reason phrase `Fine, thanks`", input: reply("HTTP/1.1 200 Fine, thanks", "Content-Length: 0\r\n", ""), element: reason, want: "Fine, thanks"},
	{title: "no reason phrase", input: reply("HTTP/1.1 200", "Content-Length: 0\r\n", ""), element: reason},
	{title: "reason phrase in UTF-8", input: reply("HTTP/1.1 200 caf\xc3\xa9", "Content-Length: 0\r\n", ""), element: reason, want: "caf\xc3\xa9"},
	{title: "`HTTP/1.2`", input: reply("HTTP/1.2 200 OK", "Content-Length: 5\r\n", "hello"), element: body, want: "hello"},
	{title: "two spaces before the status", input: reply("HTTP/1.1  200 OK", "Content-Length: 5\r\n", "hello"), element: body, want: "hello"},
	{title: "status 999", input: reply("HTTP/1.1 999 x", "Content-Length: 0\r\n", ""), element: reason, want: "x"},
	{title: "no status line", input: "hello", element: body, want: "hello"},
	{title: "all lines end with LF", input: "HTTP/1.0 200 OK\nContent-Length: 5\n\nhello", element: body, want: "hello"},
	{title: "eight 1xx responses first", input: strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 8) + reply("HTTP/1.1 200 OK", "Content-Length: 5\r\n", "hello"), element: body, want: "hello"},
	{title: "101 without an upgrade", input: reply("HTTP/1.1 101 Switching Protocols", "", ""), element: body},
	{title: "value of 100 000 bytes", input: reply("HTTP/1.1 200 OK", "Content-Length: 0\r\nX-A: "+strings.Repeat("v", 100_000)+"\r\n", ""), element: value("x-a"), want: strings.Repeat("v", 100_000)},
	{title: "folded field line", input: reply("HTTP/1.1 200 OK", "Content-Length: 0\r\nX-A: a\r\n b\r\n", ""), element: value("x-a"), want: "a b"},
	{title: "control character 0x01 in a value", input: reply("HTTP/1.1 200 OK", "Content-Length: 0\r\nX-A: a\x01b\r\n", ""), element: value("x-a"), want: "a\x01b"},
	{title: "field line without a colon", input: reply("HTTP/1.1 200 OK", "Content-Length: 0\r\nnocolon\r\n", ""), element: value("nocolon"), want: ""},
	{title: "Content-Length and Transfer-Encoding", input: reply("HTTP/1.1 200 OK", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", helloChunks), element: body, want: "hello"},
	{title: "two equal Content-Length fields", input: reply("HTTP/1.1 200 OK", "Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), element: body, want: "hello"},
	{title: "two different Content-Length fields", input: reply("HTTP/1.1 200 OK", "Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), element: body, want: "hello"},
	{title: "no length: the body ends with the connection", input: reply("HTTP/1.1 200 OK", "", "hello"), element: body, want: "hello"},
	{title: "chunk size `5 `", input: reply("HTTP/1.1 200 OK", "Transfer-Encoding: chunked\r\n", "5 \r\nhello\r\n0\r\n\r\n"), element: body, want: "hello"},
	{title: "body shorter than Content-Length", input: reply("HTTP/1.1 200 OK", "Content-Length: 9\r\n", "hello"), element: body, want: "hello"},
	{title: "another response after the body", input: reply("HTTP/1.1 200 OK", "Content-Length: 5\r\n", "helloHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"), element: body, want: "hello"},
}
