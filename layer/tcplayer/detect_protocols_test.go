package tcplayer

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
)

// decision says when Detect has to decide.
type decision int

const (
	immediate    decision = iota // at a byte that has arrived
	afterTimeout                 // when the time is over
	afterEnd                     // at the end of the client's bytes, which are half-closed
)

// TestDetectProtocols sends the first bytes of clients of many protocols over real connections.
// All bytes are delivered to the server of the detected protocol, at once or when the time is over,
// in one packet and one byte at a time. The response flows back.
func TestDetectProtocols(t *testing.T) {
	long := strings.Repeat("abcdefgh", 1000)
	for name, tt := range map[string]struct {
		said string
		want string
		when decision
	}{
		// Binary protocols.
		"HL7 MLLP":             {"\vMSH|^~\\&|LAB|H1|EHR|H2|20240101||ADT^A01|1|P|2.5\rPID|1\r\x1c\r", "opaque", immediate},
		"HL7 MLLP, first byte": {"\v", "opaque", immediate},
		"ASTM ENQ":             {"\x05", "opaque", immediate},
		"ASTM frame":           {"\x021H|\\^&|||Host\r\x03", "opaque", immediate},
		"form feed":            {"\fpage", "opaque", immediate},
		"file separator":       {"\x1chello", "opaque", immediate},
		"next line":            {"\x85hello", "opaque", immediate},
		"no-break space":       {"\xa0hello", "opaque", immediate},
		"NUL":                  {"\x00", "opaque", immediate},
		"telnet IAC":           {"\xff\xfd\x18", "opaque", immediate},
		"MQTT":                 {"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c", "opaque", immediate},
		"AMQP":                 {"AMQP\x00\x00\x09\x01", "opaque", immediate},
		"Kafka":                {"\x00\x00\x00\x14\x00\x12\x00\x03", "opaque", immediate},
		"PostgreSQL":           {"\x00\x00\x00\x08\x04\xd2\x16\x2f", "opaque", immediate},
		"MongoDB":              {"\x3f\x00\x00\x00\x01\x00\x00\x00", "opaque", immediate},
		"MongoDB, a letter":    {"G\x00\x00\x00\x01\x00\x00\x00", "opaque", immediate},
		"LDAP":                 {"0\x0c\x02\x01\x01\x60\x07", "opaque", immediate},
		"DNS over TCP":         {"\x00\x1d\xab\xcd\x01\x00", "opaque", immediate},
		"TLS ClientHello":      {"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03", "opaque", immediate},
		"Cassandra":            {"\x04\x00\x00\x00\x05", "opaque", immediate},
		"Thrift":               {"\x80\x01\x00\x01", "opaque", immediate},
		"Java RMI":             {"JRMI\x00\x02K", "opaque", immediate},
		"Java objects":         {"\xac\xed\x00\x05", "opaque", immediate},
		"RDP":                  {"\x03\x00\x00\x13\x0e\xe0", "opaque", immediate},
		"BitTorrent":           {"\x13BitTorrent protocol", "opaque", immediate},
		"Redis cluster bus":    {"RCmb\x00\x00", "opaque", immediate},
		"IEC 104":              {"h\x04\x07\x00\x00\x00", "opaque", immediate},
		"Modbus":               {"\x00\x01\x00\x00\x00\x06\x01\x03", "opaque", immediate},
		"FIX":                  {"8=FIX.4.4\x019=65\x0135=A\x01", "opaque", immediate},
		"ISO 8583":             {"00350800822000000000000004000000000000000", "opaque", immediate},
		"SOCKS 5":              {"\x05\x01\x00", "opaque", immediate},
		"printer, UEL":         {"\x1b%-12345X@PJL\n", "opaque", immediate},
		"UTF-8 text":           {"\xc3\xa9t\xc3\xa9", "opaque", immediate},
		"byte order mark":      {"\xef\xbb\xbfGET / HTTP/1.1\r\n", "opaque", immediate},

		// Text protocols.
		"SMTP, client first":   {"EHLO example.com\r\n", "opaque", immediate},
		"Redis, inline":        {"PING\r\n", "opaque", immediate},
		"Redis, inline GET":    {"GET key\r\n", "opaque", immediate},
		"Redis RESP":           {"*1\r\n$4\r\nPING\r\n", "opaque", immediate},
		"memcached":            {"set key 0 0 5\r\nvalue\r\n", "opaque", immediate},
		"memcached, a path":    {"get /key\r\n", "opaque", immediate},
		"STOMP":                {"CONNECT\naccept-version:1.2\n\n\x00", "opaque", immediate},
		"NATS":                 {"CONNECT {\"verbose\":false}\r\nPING\r\n", "opaque", immediate},
		"IRC":                  {"NICK gopher\r\nUSER gopher 0 * :g\r\n", "opaque", immediate},
		"IRC, begins like PRI": {"PRIVMSG #go :hi\r\n", "opaque", immediate},
		"SSH banner":           {"SSH-2.0-OpenSSH_9.7\r\n", "opaque", immediate},
		"syslog":               {"<34>Oct 11 22:14:15 web su: failed\n", "opaque", immediate},
		"syslog, counted":      {"83 <34>1 2003-10-11T22:14:15.003Z web su", "opaque", immediate},
		"JSON lines":           {"{\"method\": \"GET\"}\n", "opaque", immediate},
		"JSON array":           {"[1,2", "opaque", immediate},
		"XML":                  {"<?xml version=\"1.0\"?>", "opaque", immediate},
		"POP3":                 {"USER gopher\r\n", "opaque", immediate},
		"IMAP":                 {"a001 LOGIN gopher x\r\n", "opaque", immediate},
		"SIP":                  {"OPTIONS sip:x SIP/2.0\r\n", "opaque", immediate},
		"RTSP":                 {"DESCRIBE rtsp://a/b RTSP/1.0\r\n", "opaque", immediate},
		"ICAP":                 {"REQMOD icap://a/b ICAP/1.0\r\n", "opaque", immediate},
		"Icecast":              {"SOURCE /stream ICE/1.0\r\n", "opaque", immediate},
		"rsync":                {"@RSYNCD: 31.0\n", "opaque", immediate},
		"git":                  {"0033git-upload-pack /project.git\x00host=a\x00", "opaque", immediate},
		"NSQ":                  {"  V2IDENTIFY\n\x00\x00\x00\x02{}", "opaque", immediate},
		"gopher selector":      {"/docs\r\n", "opaque", immediate},
		"finger":               {"gopher\r\n", "opaque", immediate},
		"SCPI":                 {"*IDN?\n", "opaque", immediate},
		"NMEA":                 {"$GPGGA,123519,4807.038,N\r\n", "opaque", immediate},
		"beanstalkd":           {"put 0 0 60 5\r\nhello\r\n", "opaque", immediate},
		"modem":                {"AT+CSQ\r", "opaque", immediate},
		"lines that end in CR": {"show version\rshow clock\r", "opaque", immediate},
		"HL7 without a frame":  {"MSH|^~\\&|LAB\r", "opaque", immediate},
		"a response":           {"HTTP/1.1 200 OK\r\n", "opaque", immediate},
		"line of a log":        {"GET / \"HTTP/1.1\"\n", "opaque", immediate},
		"like a method":        {"GETTING started\r\n", "opaque", immediate},
		"long line":            {"EHLO " + long + "\r\n", "opaque", immediate},
		"long word":            {long, "opaque", immediate},
		"empty lines only":     {strings.Repeat("\r\n", 600), "opaque", immediate},
		"HTTP/2, other start":  {"PRI * SMTP\r\n", "opaque", immediate},

		// HTTP.
		"HTTP/1.1":               {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "one", immediate},
		"HTTP/1.0":               {"GET / HTTP/1.0\r\n\r\n", "one", immediate},
		"bare LF":                {"GET / HTTP/1.1\nHost: a\n\n", "one", immediate},
		"leading CRLF":           {"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "one", immediate},
		"leading LF":             {"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "one", immediate},
		"lower-case method":      {"get / HTTP/1.1\r\nHost: a\r\n\r\n", "one", immediate},
		"unknown method":         {"M-SEARCH_2 * HTTP/1.1\r\nHost: a\r\n\r\n", "one", immediate},
		"CONNECT":                {"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", "one", immediate},
		"absolute URI":           {"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "one", immediate},
		"long path":              {"GET /" + long + " HTTP/1.1\r\nHost: a\r\n\r\n", "one", immediate},
		"HTTP/0.9":               {"GET /\r\n", "one", immediate},
		"malformed request line": {"GET  / HTTP/1.1\r\n\r\n", "one", immediate},
		"HTTP/2":                 {preface + "\r\n\r\nSM\r\n\r\n", "two", immediate},
		"HTTP/1.1 with PRI":      {"PRI * HTTP/1.1\r\n\r\n", "one", immediate},

		// What can still become HTTP is opaque when the time is over, or when the client ends.
		"server first":               {"", "opaque", afterTimeout},
		"gopher menu, finger list":   {"\r\n", "opaque", afterTimeout},
		"CR":                         {"\r", "opaque", afterTimeout},
		"word without an end":        {"hello", "opaque", afterTimeout},
		"words without an end":       {"hello world, how are you?", "opaque", afterTimeout},
		"spaces":                     {"    ", "opaque", afterTimeout},
		"part of a request line":     {"GET / HTTP/1.1", "opaque", afterTimeout},
		"part of the preface":        {"PRI * HTTP/2", "opaque", afterTimeout},
		"end at once":                {"", "opaque", afterEnd},
		"part of a request, ended":   {"GET / HT", "opaque", afterEnd},
		"word, ended":                {"hello", "opaque", afterEnd},
		"CRLF, ended":                {"\r\n", "opaque", afterEnd},
		"HL7 MLLP, ended":            {"\vMSH|^~\\&|LAB\r\x1c\r", "opaque", afterEnd},
		"HTTP/1.1, ended":            {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "one", afterEnd},
		"part of the preface, ended": {"PRI", "opaque", afterEnd},
	} {
		for _, step := range []int{max(len(tt.said), 1), 1} {
			if step == 1 && len(tt.said) > 2000 {
				continue
			}
			t.Run(name, func(t *testing.T) {
				client, accepted := conntest.Pair(t)
				require.NoError(t, client.SetDeadline(time.Now().Add(time.Minute)))
				limit := time.Hour
				if tt.when == afterTimeout {
					limit = 20 * time.Millisecond
				}
				var log lockedBuffer
				done := make(chan error, 1)
				go func() {
					_, err := Detect(all3(), WithDetectTimeout(limit), WithDetectLogger(debugLog(&log))).Call(t.Context(), accepted)
					done <- err
				}()
				for said := tt.said; said != ""; said = said[step:] {
					_, err := io.WriteString(client, said[:min(step, len(said))])
					require.NoError(t, err)
					step = min(step, len(said))
				}
				if tt.when == afterEnd {
					require.NoError(t, client.CloseWrite())
				}
				want := tt.want + ": " + tt.said
				got := make([]byte, len(want))
				_, err := io.ReadFull(client, got)
				require.NoError(t, err, "%q", got)
				assert.Equal(t, want, string(got))
				if tt.when != afterEnd {
					require.NoError(t, client.CloseWrite())
				}
				rest, err := io.ReadAll(client)
				require.NoError(t, err)
				assert.Empty(t, rest)
				require.NoError(t, <-done)
				assert.Equal(t, tt.when == afterTimeout, strings.Contains(log.String(), `msg="detection timed out, treating the connection as opaque"`))
			})
		}
	}
}

// debugLog returns a logger of all levels that writes to w.
func debugLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
