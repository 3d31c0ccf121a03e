package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// fuzzedMessage is a request or a response on stream 1.
type fuzzedMessage struct {
	fields   string // one "name: value" per line
	body     []byte
	trailers string
	form     uint8
}

// The first two bits of a form tell which frame has END_STREAM.
const (
	endsInData = iota
	endsInHeaders
	endsInTrailers
	endsNever
)

// More bits of a form.
const (
	padded    = 4
	continued = 8
	isHead    = 16
)

// write returns false if the message cannot be encoded.
func (m fuzzedMessage) write(fr *http2.Framer) bool {
	ends := m.form & 3
	if !m.headers(fr, m.fields, ends == endsInHeaders) || len(m.body) > 32<<10 {
		return false
	}
	if ends == endsInHeaders {
		return true
	}
	half, rest := m.body[:len(m.body)/2], m.body[len(m.body)/2:]
	if m.form&padded != 0 {
		_ = fr.WriteDataPadded(1, false, half, make([]byte, 3))
	} else {
		rest = m.body[:min(len(m.body), minMaxFrame)]
	}
	if len(rest) > 0 || ends == endsInData {
		_ = fr.WriteData(1, ends == endsInData, rest)
	}
	return ends != endsInTrailers || m.headers(fr, m.trailers, true)
}

// headers writes a header block.
func (m fuzzedMessage) headers(fr *http2.Framer, text string, end bool) bool {
	var fields []string
	if text != "" {
		fields = strings.Split(text, "\n")
	}
	for _, field := range fields {
		if len(field) < 2 || !strings.Contains(field[1:], ":") {
			return false
		}
	}
	b := block(fields...)
	if len(b) > minMaxFrame-300 {
		return false
	}
	p := http2.HeadersFrameParam{StreamID: 1, BlockFragment: b, EndHeaders: true, EndStream: end}
	if m.form&padded != 0 {
		p.PadLength, p.Priority = 200, http2.PriorityParam{StreamDep: 3, Weight: 9}
	}
	if m.form&continued != 0 {
		p.BlockFragment, p.EndHeaders = b[:len(b)/3], false
		_ = fr.WriteHeaders(p)
		_ = fr.WriteContinuation(1, true, b[len(b)/3:])
		return true
	}
	_ = fr.WriteHeaders(p)
	return true
}

// sentMessage is a message on stream 1, as x/net parses it.
type sentMessage struct {
	informs []http.Header
	header  http.Header // with the pseudo-header fields
	body    []byte
	trailer http.Header
	ended   bool
}

// parse requires that out has at most one message, in which all fields are valid.
func parse(t *testing.T, out []byte) (m sentMessage) {
	fr := http2.NewFramer(nil, bytes.NewReader(bytes.TrimPrefix(out, []byte(preface))))
	fr.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
	for {
		f, err := fr.ReadFrame()
		if err == io.EOF {
			return m
		}
		require.NoError(t, err)
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			require.EqualValues(t, 1, f.StreamID)
			require.False(t, m.ended)
			h := make(http.Header)
			for _, field := range f.Fields {
				key := http.CanonicalHeaderKey(field.Name)
				h[key] = append(h[key], field.Value)
			}
			m.ended = f.StreamEnded()
			switch {
			case strings.HasPrefix(f.PseudoValue("status"), "1"):
				require.Nil(t, m.header)
				m.informs = append(m.informs, h)
			case m.header == nil:
				m.header = h
			default:
				require.Empty(t, f.PseudoFields())
				require.True(t, m.ended)
				m.trailer = h
			}
		case *http2.DataFrame:
			require.EqualValues(t, 1, f.StreamID)
			require.False(t, m.ended)
			require.NotNil(t, m.header)
			m.body = append(m.body, f.Data()...)
			m.ended = f.StreamEnded()
		}
	}
}

// compared returns h without the fields that are compared by their meaning.
func compared(h http.Header) http.Header {
	h = h.Clone()
	for key, values := range h {
		if key == "Trailer" || key == "Te" && (len(values) != 1 || values[0] != "trailers") || key == "Content-Length" || key[0] == ':' {
			delete(h, key)
		}
	}
	return h
}

// requireTrailers requires that the trailers were sent, except those that may not be sent.
func requireTrailers(t *testing.T, received, sent http.Header) {
	want := make(http.Header)
	for key, values := range received {
		if len(values) > 0 && message.ValidTrailer(key) {
			want[key] = values
		}
	}
	if len(want)+len(sent) > 0 {
		require.Equal(t, want, sent)
	}
}

// receivedBody is a body that has arrived completely.
type receivedBody struct{ *bytes.Reader }

func (b *receivedBody) Pending() (n int, eof bool) { return b.Len(), true }
func (*receivedBody) Close() error                 { return nil }

func fuzzServer(in []byte, exchange message.Exchange) (out []byte) {
	nc := newFakeConn(in)
	nc.end = finished
	_ = NewServerConn(context.Background(), nc, &message.ServerConfig{
		Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler), Exchange: exchange,
	}).Serve()
	return nc.written()
}

// fuzzClient sends req by a client.
func fuzzClient(nc *fakeConn, req *http.Request) (*http.Response, error) {
	c := NewClientConn(nc, &ClientConfig{})
	if !c.Reserve() {
		panic("a new connection has no slot")
	}
	rsp, err := c.RoundTrip(req)
	if err != nil {
		_ = c.Close()
	}
	<-c.Done()
	return rsp, err
}

// FuzzRequest sends a request to this server and to that of x/net, which net/http uses. A
// request that this server accepts is accepted there, and equal. This client sends it as one request.
func FuzzRequest(f *testing.F) {
	for _, fields := range [][]string{
		get, with(get, "host: host.test"), with(get, "host: HOST.test"), with(get, "cookie: a", "cookie: b"), with(get[:2], ":path: /a%20?x", ":authority: h:1"),
		with(get, "te: trailers", "x: y", "x: z"), {":method: CONNECT", ":authority: h:1"}, with(get, "content-length: 0"),
		{":method: OPTIONS", ":scheme: https", ":path: *", ":authority: [::1]:2"}, with(get, "expect: 100-continue", "trailer: x, y"),
		with(get, "content-length: 3"), with(get, "content-type: application/grpc", "trailer: x"),
	} {
		text := strings.Join(fields, "\n")
		f.Add(text, []byte(nil), "", uint8(endsInHeaders))
		f.Add(text, []byte("abc"), "", uint8(endsInData))
		f.Add(text, []byte("abc"), "x: y\nz: a", uint8(endsInTrailers|padded))
		f.Add(text, []byte(nil), "x: y\nauthorization: a", uint8(endsInTrailers|continued))
	}
	f.Add(strings.Join(with(get[:2], `:path: /"[|]?"%zz`, ":authority: h:1"), "\n"), []byte(nil), "", uint8(endsInHeaders))
	var upstream bytes.Buffer // 100 Continue, because a client waits for it
	fr := http2.NewFramer(&upstream, nil)
	_ = fr.WriteSettings()
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status: 100"), EndHeaders: true})
	f.Fuzz(func(t *testing.T, fields string, body []byte, trailers string, form uint8) {
		var in bytes.Buffer
		in.WriteString(preface)
		fr := http2.NewFramer(&in, nil)
		_ = fr.WriteSettings()
		if form&3 == endsNever || strings.Contains(fields, ":protocol") || !(fuzzedMessage{fields, body, trailers, form}).write(fr) {
			return // x/net accepts :protocol only if an environment variable allows it
		}
		var own *http.Request
		var sent sentMessage
		fuzzServer(in.Bytes(), func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodConnect { // a client does not send it
				if _, err := io.Copy(io.Discard, req.Body); err == nil {
					own = req
				}
				return &http.Response{StatusCode: 204, Body: http.NoBody}, nil
			}
			nc := newFakeConn(upstream.Bytes())
			nc.start, nc.end = began, finished
			rsp, err := fuzzClient(nc, req)
			var invalid *message.RequestError
			if sent = parse(t, nc.written()); sent.ended {
				own = req
			} else if errors.As(err, &invalid) && invalid != message.ErrShortBody && invalid != message.ErrLongBody {
				t.Errorf("accepted and not sent: %q: %v", fields, err)
			}
			return rsp, err
		})
		if own == nil || strings.ContainsFunc(own.Host, func(r rune) bool { return r >= utf8.RuneSelf }) {
			return // nginx and haproxy accept such a host, x/net does not
		}
		nc := newFakeConn(in.Bytes())
		nc.end = finished
		handled := make(chan *http.Request, 1)
		var standardBody []byte
		new(http2.Server).ServeConn(nc, &http2.ServeConnOpts{Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			var err error
			if standardBody, err = io.ReadAll(req.Body); err == nil {
				handled <- req
			}
		})})
		var standard *http.Request
		select {
		case standard = <-handled:
		default:
		}
		require.NotNil(t, standard, "accepted here only: %q", fields)
		require.Equal(t, standard.Method, own.Method)
		require.Equal(t, standard.RequestURI, own.RequestURI)
		require.Equal(t, standard.Host, own.Host)
		require.Equal(t, standard.URL, own.URL)
		require.Equal(t, standard.ContentLength, own.ContentLength)
		for key, values := range standard.Header {
			require.Equal(t, values, own.Header[key], key)
		}
		for key, values := range standard.Trailer {
			if own.Trailer != nil && message.ValidTrailer(key) {
				require.Equal(t, values, own.Trailer[key], key)
			}
		}
		if sent.header == nil {
			return
		}
		require.Equal(t, []string{own.Method}, sent.header[":method"])
		require.Equal(t, own.Host, strings.Join(sent.header[":authority"], ", "))
		require.Equal(t, []string{own.RequestURI}, sent.header[":path"])
		require.Equal(t, compared(own.Header), compared(sent.header))
		require.Equal(t, string(standardBody), string(sent.body))
		if length := sent.header["Content-Length"]; length != nil {
			require.Equal(t, []string{strconv.Itoa(len(sent.body))}, length)
		}
		requireTrailers(t, own.Trailer, sent.trailer)
	})
}

// FuzzResponse sends a response to this client and to that of x/net. A response that this client
// accepts is accepted there, and equal. This server sends it as one response.
func FuzzResponse(f *testing.F) {
	for _, fields := range []string{
		":status: 200", ":status: 200\ncontent-length: 3\nx: y\nx: z", ":status: 404\ntrailer: x, y", ":status: 204\ncontent-length: 0", ":status: 304\ncontent-length: 7",
		":status: 200\nconnection: close", ":status: 200\nte: a\ntrailer: te\nset-cookie: a\nset-cookie: b", ":status: 999\nhost: h\ncontent-length: 003",
	} {
		f.Add("", fields, []byte(nil), "", uint8(endsInHeaders), uint32(0), false)
		f.Add(":status: 103\nlink: a", fields, []byte("abc"), "", uint8(endsInData), uint32(0), true)
		f.Add(":status: 100\n\n:status: 199\nx: y", fields, []byte("abc"), "x: y\nz: a", uint8(endsInTrailers|padded), uint32(8), true)
		f.Add("", fields, []byte(nil), "x: y\nauthorization: a", uint8(endsInTrailers|continued), uint32(0), false)
		f.Add("", fields, []byte("abc"), "", uint8(endsNever), uint32(0), true)
		f.Add("", fields, []byte(nil), "", uint8(endsInData|isHead), uint32(0), false)
		f.Add("", fields, []byte(nil), "x: y", uint8(endsInTrailers|isHead), uint32(0), false)
	}
	f.Fuzz(func(t *testing.T, informs, fields string, body []byte, trailers string, form uint8, code uint32, resets bool) {
		var in bytes.Buffer
		fr := http2.NewFramer(&in, nil)
		_ = fr.WriteSettings()
		m := fuzzedMessage{fields, body, trailers, form}
		if informs != "" {
			for text := range strings.SplitSeq(informs, "\n\n") {
				if !m.headers(fr, text, false) {
					return
				}
			}
		}
		if !m.write(fr) {
			return
		}
		if resets {
			_ = fr.WriteRSTStream(1, http2.ErrCode(code))
		}
		upstream := func() *fakeConn {
			nc := newFakeConn(in.Bytes())
			nc.start = finished // the request was sent
			return nc
		}

		method := http.MethodGet
		if form&isHead != 0 {
			method = http.MethodHead
		}
		var request bytes.Buffer
		request.WriteString(preface)
		fr = http2.NewFramer(&request, nil)
		_ = fr.WriteSettings()
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(with(get[1:], ":method: "+method)...), EndHeaders: true, EndStream: true})
		var own *http.Response
		var ownBody []byte
		sent := parse(t, fuzzServer(request.Bytes(), func(req *http.Request) (rsp *http.Response, err error) {
			if rsp, err = fuzzClient(upstream(), req); err != nil {
				return nil, err
			}
			if ownBody, err = io.ReadAll(rsp.Body); err == nil {
				own, rsp.Body = rsp, &receivedBody{bytes.NewReader(ownBody)}
			}
			return rsp, err
		}))
		if own == nil || !sent.ended {
			return
		}

		var standardInforms []http.Header
		ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			if code != http.StatusContinue {
				h := compared(http.Header(header))
				h[":status"] = []string{strconv.Itoa(code)}
				standardInforms = append(standardInforms, h)
			}
			return nil
		}})
		req, err := http.NewRequestWithContext(ctx, method, "http://host.test/", nil)
		require.NoError(t, err)
		c, err := (&http2.Transport{DisableCompression: true}).NewClientConn(upstream())
		require.NoError(t, err)
		defer c.Close()
		standard, err := c.RoundTrip(req)
		require.NoError(t, err, "accepted here only: %q", fields)
		hasBody := message.BodyAllowed(own.StatusCode) && method != http.MethodHead
		standardBody, err := io.ReadAll(standard.Body)
		if hasBody { // x/net expects a body if a 304 has a content-length
			require.NoError(t, err, "accepted here only: %q", fields)
		}
		require.NoError(t, standard.Body.Close())
		require.Equal(t, standard.StatusCode, own.StatusCode)
		require.Equal(t, standard.ContentLength, own.ContentLength)
		require.Equal(t, compared(standard.Header), compared(own.Header))
		require.Equal(t, string(standardBody), string(ownBody))
		if method != http.MethodHead { // x/net drops the trailers of a response to HEAD
			for key, values := range standard.Trailer {
				require.Equal(t, values, own.Trailer[key], key)
			}
		}

		for i, h := range sent.informs {
			status := h[":status"]
			sent.informs[i] = compared(h)
			sent.informs[i][":status"] = status
		}
		require.Equal(t, standardInforms, sent.informs)
		require.Equal(t, []string{strconv.Itoa(own.StatusCode)}, sent.header[":status"])
		require.Equal(t, compared(own.Header), compared(sent.header))
		require.Equal(t, string(ownBody), string(sent.body))
		if length := sent.header["Content-Length"]; length != nil {
			require.Equal(t, []string{strconv.FormatInt(own.ContentLength, 10)}, length)
		}
		if hasBody {
			requireTrailers(t, own.Trailer, sent.trailer)
		}
	})
}
