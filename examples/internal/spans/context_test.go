package spans_test

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/internal/spans"
)

const (
	trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	span  = "00f067aa0ba902b7"
	ids   = trace + "-" + span
)

func TestParse(t *testing.T) {
	for value, want := range map[string]bool{
		"00-" + ids + "-01": true, "00-" + ids + "-00": true, "01-" + ids + "-01-more": true,
		"": false, "00": false, "00-" + ids: false, "ff-" + ids + "-01": false, "00-" + ids + "-01-more": false,
		"00-" + strings.ToUpper(ids) + "-01": false, "00-" + ids + "-1": false, "00-" + ids + "-0g": false,
		"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01": false, "00-" + trace + "-0000000000000000-01": false,
	} {
		c, ok := spans.Parse(http.Header{"Traceparent": {value}})
		assert.Equal(t, want, ok, value)
		assert.Equal(t, want && !strings.HasSuffix(value, "-00"), ok && c.Sampled(), value)
	}
	_, ok := spans.Parse(http.Header{"Traceparent": {"00-" + ids + "-01", "00-" + ids + "-01"}})
	assert.False(t, ok)
}

// blob returns a value of grpc-trace-bin.
func blob(t *testing.T, hexadecimal string) string {
	t.Helper()
	b, err := hex.DecodeString(hexadecimal)
	require.NoError(t, err)
	return base64.StdEncoding.EncodeToString(b)
}

// A trace continues in the format in which it arrives. Other headers of traces stay.
func TestParseAny(t *testing.T) {
	opencensus := blob(t, "0000"+trace+"01"+span+"0201")
	for name, tt := range map[string]struct {
		header  http.Header
		sampled bool
		written string // the header that has the ID of the span
		value   string // with %, the hexadecimal ID
	}{
		"w3c": {http.Header{"Traceparent": {"00-" + ids + "-03"}, "Tracestate": {"a=1", "b=2"}}, true, "Traceparent", "00-" + trace + "-%-03"},
		"w3c before the others": {
			http.Header{"Traceparent": {"00-" + ids + "-01"}, "X-B3-Traceid": {"1"}, "X-B3-Spanid": {"1"}},
			true, "Traceparent", "00-" + trace + "-%-01",
		},
		"b3":             {http.Header{"X-B3-Traceid": {trace}, "X-B3-Spanid": {span}, "X-B3-Sampled": {"1"}}, true, "X-B3-Spanid", "%"},
		"b3 not sampled": {http.Header{"X-B3-Traceid": {trace}, "X-B3-Spanid": {span}, "X-B3-Sampled": {"0"}}, false, "X-B3-Spanid", "%"},
		"grpc":           {http.Header{"Grpc-Trace-Bin": {opencensus}}, true, "Grpc-Trace-Bin", ""},
		"grpc unpadded":  {http.Header{"Grpc-Trace-Bin": {strings.TrimRight(opencensus, "=")}}, true, "Grpc-Trace-Bin", ""},
		"grpc of a later version": {
			http.Header{"Grpc-Trace-Bin": {blob(t, "0000"+trace+"01"+span+"020109ffff")}}, true, "Grpc-Trace-Bin", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, ok := spans.ParseAny(tt.header)
			require.True(t, ok)
			assert.Equal(t, trace, hex.EncodeToString(c.Trace[:]))
			assert.Equal(t, span, hex.EncodeToString(c.ID[:]))
			assert.Equal(t, tt.sampled, c.Sampled())
			child := c.Child()
			assert.Equal(t, c.ID, child.Parent)
			id := hex.EncodeToString(child.ID[:])
			want := tt.header.Clone()
			want[tt.written] = []string{strings.Replace(tt.value, "%", id, 1)}
			if tt.value == "" {
				want[tt.written] = []string{blob(t, "0000"+trace+"01"+id+"0201")}
			}
			if state := want["Tracestate"]; state != nil {
				want["Tracestate"] = []string{strings.Join(state, ",")}
			}
			child.Write(tt.header)
			assert.Equal(t, want, tt.header)
		})
	}
	short, ok := spans.ParseAny(http.Header{"X-B3-Traceid": {span}, "X-B3-Spanid": {span}})
	require.True(t, ok)
	assert.Equal(t, strings.Repeat("0", 16)+span, hex.EncodeToString(short.Trace[:]))
	odd, ok := spans.ParseAny(http.Header{"X-B3-Traceid": {"abc"}, "X-B3-Spanid": {strings.TrimLeft(span, "0")}})
	require.True(t, ok, "clients may omit leading zeros")
	assert.Equal(t, strings.Repeat("0", 29)+"abc", hex.EncodeToString(odd.Trace[:]))
	assert.Equal(t, span, hex.EncodeToString(odd.ID[:]))
	for _, h := range []http.Header{
		{},
		{"X-B3-Traceid": {trace}},
		{"X-B3-Traceid": {trace + "00"}, "X-B3-Spanid": {span}},
		{"X-B3-Traceid": {trace}, "X-B3-Spanid": {"xyz"}},
		{"X-B3-Traceid": {"0"}, "X-B3-Spanid": {span}},
		{"Grpc-Trace-Bin": {"!"}},
		{"Grpc-Trace-Bin": {blob(t, "0000"+trace+"01"+span[2:])}},
		{"Grpc-Trace-Bin": {blob(t, "0000"+trace+"02")}},
		{"Grpc-Trace-Bin": {blob(t, "00")}},
	} {
		_, ok := spans.ParseAny(h)
		assert.False(t, ok, h)
	}
}
