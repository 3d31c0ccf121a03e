package tcplayer

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"
)

// schema is the message Header of linkerd's proxy.
const schema = `
name: "header.proto" package: "transport.l5d.io" syntax: "proto3"
message_type {
  name: "Header"
  field { name: "port" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "name" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "session_protocol" number: 3 type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".transport.l5d.io.SessionProtocol" }
}
message_type {
  name: "SessionProtocol"
  field { name: "http1" number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".transport.l5d.io.SessionProtocol.Http1" oneof_index: 0 }
  field { name: "http2" number: 2 type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".transport.l5d.io.SessionProtocol.Http2" oneof_index: 0 }
  nested_type { name: "Http1" }
  nested_type { name: "Http2" }
  oneof_decl { name: "kind" }
}`

// oracle encodes and decodes the message Header by its schema.
type oracle struct {
	header protoreflect.MessageDescriptor
}

func newOracle(t testing.TB) oracle {
	t.Helper()
	var file descriptorpb.FileDescriptorProto
	require.NoError(t, prototext.Unmarshal([]byte(schema), &file))
	built, err := protodesc.NewFile(&file, nil)
	require.NoError(t, err)
	return oracle{built.Messages().ByName("Header")}
}

func (o oracle) marshal(t require.TestingT, h TransportHeader) []byte {
	m := dynamicpb.NewMessage(o.header)
	fields := o.header.Fields()
	m.Set(fields.ByName("port"), protoreflect.ValueOfInt32(int32(h.Port)))
	m.Set(fields.ByName("name"), protoreflect.ValueOfString(h.Name))
	if h.Protocol != Opaque {
		session := m.Mutable(fields.ByName("session_protocol")).Message()
		kind := session.Descriptor().Fields().ByName(protoreflect.Name(strings.ReplaceAll(strings.ToLower(h.Protocol.String()), "/", "")))
		session.Set(kind, session.NewField(kind))
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return b
}

// unmarshal decodes a message by the rules of protobuf only.
func (o oracle) unmarshal(b []byte) (port int64, name string, p Protocol, err error) {
	m := dynamicpb.NewMessage(o.header)
	if err := proto.Unmarshal(b, m); err != nil {
		return 0, "", 0, err
	}
	fields := o.header.Fields()
	session := m.Get(fields.ByName("session_protocol")).Message()
	if kind := session.WhichOneof(session.Descriptor().Oneofs().Get(0)); kind != nil {
		p = Protocol(kind.Number())
	}
	return m.Get(fields.ByName("port")).Int(), m.Get(fields.ByName("name")).String(), p, nil
}

// prefaced is a message in its form on the wire.
func prefaced(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte(headerPreface), uint32(len(message))), message...)
}

func headers() *rapid.Generator[TransportHeader] {
	return rapid.Custom(func(t *rapid.T) TransportHeader {
		return TransportHeader{
			Port:     rapid.Uint16Min(1).Draw(t, "port"),
			Name:     rapid.StringMatching(`|[a-z_][a-z0-9-]{0,20}[a-z0-9](\.[a-z_][a-z0-9]{0,20}){0,5}\.?`).Draw(t, "name"),
			Protocol: rapid.SampledFrom([]Protocol{Opaque, HTTP1, HTTP2}).Draw(t, "protocol"),
		}
	})
}

// An encoded header follows the schema, and can be parsed once it is complete.
func TestTransportHeaderRoundTrip(t *testing.T) {
	o := newOracle(t)
	rapid.Check(t, func(t *rapid.T) {
		h := headers().Draw(t, "header")
		wire := h.AppendTo([]byte("before"))[len("before"):]
		require.Equal(t, prefaced(o.marshal(t, h)), wire)
		got, size, err := parseTransportHeader(append(slices.Clip(wire), "12345"...))
		require.NoError(t, err)
		require.Equal(t, h, got)
		require.Equal(t, len(wire), size)
		for n := range wire {
			_, _, err := parseTransportHeader(wire[:n])
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, n)
		}
	})
}

func TestTransportHeaderEncoding(t *testing.T) {
	h := TransportHeader{Port: 4040, Name: "foo.bar.example.com", Protocol: HTTP2}
	assert.Equal(t, "transport.l5d.io/v1\r\n\r\n\x00\x00\x00\x1c\x08\xc8\x1f\x12\x13foo.bar.example.com\x1a\x02\x12\x00", string(h.AppendTo(nil)))
}

func TestParseTransportHeaderErrors(t *testing.T) {
	o := newOracle(t)
	valid := o.marshal(t, TransportHeader{Port: 1})
	for said, want := range map[string]string{
		"GET / HTTP/1.1\r\n":      errNoTransportHeader.Error(),
		"transport.l5d.io/v2\r\n": errNoTransportHeader.Error(),
		"x":                       errNoTransportHeader.Error(),
		"":                        io.ErrUnexpectedEOF.Error(),
		"transport.l5d.io/v1\r\n\r\n\x00\x00\x00":                                io.ErrUnexpectedEOF.Error(),
		"transport.l5d.io/v1\r\n\r\n\x00\x01\x00\x00":                            io.ErrUnexpectedEOF.Error(),
		"transport.l5d.io/v1\r\n\r\n\x00\x01\x00\x01":                            "transport header has 65537 bytes, limit 65536",
		"transport.l5d.io/v1\r\n\r\n\xff\xff\xff\xff":                            "transport header has 4294967295 bytes, limit 65536",
		string(prefaced(nil)):                                                    "transport header: port 0 is not from 1 to 65535",
		string(prefaced([]byte("\x08\x80\x80\x04"))):                             "transport header: port 65536 is not from 1 to 65535",
		string(prefaced([]byte("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))): "transport header: port -1 is not from 1 to 65535",
		string(prefaced([]byte("\x08"))):                                         "transport header: the message is not valid protobuf",
		string(prefaced([]byte("\x1a\x03\x0a\x01\x08"))):                         "transport header: the message is not valid protobuf",
		string(prefaced([]byte("\x00\x00"))):                                     "transport header: the message is not valid protobuf",
		string(prefaced(append(valid, "\x12\x01-"...))):                          `transport header: transport header name "-" must be a DNS name`,
		string(prefaced(append(valid, "\x12\x02\xff\xff"...))):                   "transport header: the message is not valid protobuf",
	} {
		_, _, err := parseTransportHeader([]byte(said))
		require.EqualError(t, err, want, "%q", said)
		assert.Equal(t, want == io.ErrUnexpectedEOF.Error(), errors.Is(err, io.ErrUnexpectedEOF), "%q: is there more to come?", said)
	}
}

// Unknown fields are ignored, and the last of two fields applies.
func TestParseTransportHeaderUnknownFields(t *testing.T) {
	message := "\x08\x01" + "\x1a\x02\x0a\x00" + // port 1, HTTP/1
		"\x22\x03abc" + "\x2d\x00\x00\x00\x00" + "\x33\x08\x01\x34" + // bytes, fixed32, a group
		"\x08\x02" + "\x1a\x02\x12\x00" + "\x1a\x02\x1a\x00" // port 2, HTTP/2, a protocol of the future
	h, size, err := parseTransportHeader(prefaced([]byte(message)))
	require.NoError(t, err)
	assert.Equal(t, TransportHeader{Port: 2, Protocol: HTTP2}, h)
	assert.Equal(t, headerFixed+len(message), size)
}

func FuzzParseTransportHeader(f *testing.F) {
	o := newOracle(f)
	for _, h := range []TransportHeader{{}, {Port: 1}, {Port: math.MaxUint16, Name: "a.b", Protocol: HTTP1}} {
		f.Add(h.AppendTo(nil))
		f.Add(append(h.AppendTo(nil), "more"...))
	}
	f.Add(prefaced([]byte("\x08\x02\x1a\x02\x12\x00\x1a\x02\x1a\x00\x22\x03abc")))
	f.Add(prefaced([]byte("\x08\x01\x12\x01\xff\x12\x01a")))    // a name that is not UTF-8, and then one that is
	f.Add(prefaced([]byte("\x08\x01\xf0\xf0\xf0\xf0\x30\x00"))) // a field number of more than 29 bits
	f.Fuzz(func(t *testing.T, said []byte) {
		h, size, err := parseTransportHeader(said)
		if err != nil {
			require.Zero(t, h)
			require.Zero(t, size)
			more := len(said) < headerFixed || len(said) < headerFixed+int(binary.BigEndian.Uint32(said[len(headerPreface):]))
			require.False(t, errors.Is(err, io.ErrUnexpectedEOF) && !more, "it waits for nothing")
			return
		}
		require.NoError(t, h.Validate())
		_, _, short := parseTransportHeader(said[:size-1])
		require.ErrorIs(t, short, io.ErrUnexpectedEOF)
		buffered, _, err := parseTransportHeader(h.AppendTo(nil))
		require.NoError(t, err)
		require.Equal(t, h, buffered)
		port, name, p, err := o.unmarshal(said[headerFixed:size])
		require.NoError(t, err)
		require.Equal(t, TransportHeader{Port: uint16(port), Name: name, Protocol: p}, h)
	})
}

func TestDNSName(t *testing.T) {
	long := strings.Repeat(strings.Repeat("a", 63)+".", 3)
	for _, name := range []string{"a", "a.", "localhost.", "web.default.svc.cluster.local", "_x.y", "a-b", "1.a", "1a", "A", long, long + strings.Repeat("a", 61)} {
		assert.True(t, isDNSName(name), name)
	}
	for _, name := range []string{
		"", ".", "a..b", ".a", "-a", "a-", "a-.b", "a.-b", "1", "10.0.0.1", "a.1", "a.1.", "a b", "a/b", "ä", "[::1]", "*.a", "a\x00",
		strings.Repeat("a", 64), long + strings.Repeat("a", 62),
	} {
		assert.False(t, isDNSName(name), name)
	}
}

// As in linkerd's proxy, an authority with a port is for a gateway.
func TestNewTransportHeader(t *testing.T) {
	for authority, want := range map[string]TransportHeader{
		"":                         {4321, "", HTTP1},
		"foo.bar.example.com":      {4321, "", HTTP1},
		"foo.bar.example.com:5555": {5555, "foo.bar.example.com", HTTP1},
		"foo.bar.example.com:0":    {4321, "", HTTP1},
		"foo.bar.example.com:http": {4321, "", HTTP1},
		"10.0.0.1:5555":            {5555, "", HTTP1},
		"[::1]:5555":               {5555, "", HTTP1},
	} {
		assert.Equal(t, want, NewTransportHeader(4321, authority, HTTP1), authority)
	}
	require.EqualError(t, TransportHeader{}.Validate(), "transport header without a port")
}
