package h2

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2/hpack"
)

// randomFields returns fields of which some repeat.
func randomFields(r *rand.Rand) (fields []hpack.HeaderField) {
	names := []string{"content-type", "x-a", "x-request-id", "grpc-timeout", ":path", "via", "cookie", "long-" + strings.Repeat("n", 80)}
	for range r.IntN(20) {
		f := hpack.HeaderField{Name: names[r.IntN(len(names))]}
		switch r.IntN(4) {
		case 0:
			f.Value = strings.Repeat("v", r.IntN(600))
		case 1:
			f.Value = names[r.IntN(len(names))]
		case 2:
			f.Value = http.StatusText(200 + r.IntN(10))
		case 3:
			f.Sensitive = true
			f.Value = "secret\x80"
		}
		fields = append(fields, f)
	}
	return fields
}

func TestDecoderMatchesReferenceEncoder(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		var w bytes.Buffer
		enc := hpack.NewEncoder(&w)
		dec := newDecoder()
		for range 30 {
			w.Reset()
			if r.IntN(8) == 0 {
				enc.SetMaxDynamicTableSize(uint32(r.IntN(4097)))
			}
			want := randomFields(r)
			for _, f := range want {
				require.NoError(t, enc.WriteField(f))
			}
			got, err := dec.decode(w.Bytes(), nil, 1<<20)
			require.NoError(t, err)
			require.Len(t, got, len(want))
			for i, f := range got {
				require.Equal(t, want[i].Name, f.name.lower)
				require.Equal(t, want[i].Value, f.value)
			}
		}
	}
}

func TestEncoderMatchesReferenceDecoder(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		enc := newEncoder()
		dec := hpack.NewDecoder(tableSize, nil)
		for range 40 {
			if r.IntN(8) == 0 {
				for range 1 + r.IntN(2) {
					enc.setMax(uint32(r.IntN(5000)))
				}
				dec.SetAllowedMaxDynamicTableSize(tableSize)
			}
			want := randomFields(r)
			block := enc.start(nil)
			for _, f := range want {
				block = enc.field(block, knownNames[f.Name], http.CanonicalHeaderKey(f.Name), f.Value)
			}
			got, err := dec.DecodeFull(block)
			require.NoError(t, err)
			require.Len(t, got, len(want))
			for i, f := range got {
				assert.Equal(t, want[i].Name, f.Name)
				assert.Equal(t, want[i].Value, f.Value)
			}
		}
	}
}

// The table does not keep a string alive of which a field is a part.
func TestEncoderKeepsNoMessage(t *testing.T) {
	for sent := 1; sent <= 3; sent++ {
		enc := newEncoder()
		text := strings.Repeat("x-name: value\r\n", 100)
		message := weak.Make(unsafe.StringData(text))
		for range sent {
			enc.field(nil, nil, text[:6], text[8:13])
		}
		runtime.GC()
		assert.Nil(t, message.Value(), "sent %d times", sent)
		runtime.KeepAlive(&enc)
	}
}

func TestDecoderLimits(t *testing.T) {
	var w bytes.Buffer
	enc := hpack.NewEncoder(&w)
	for range 10 {
		require.NoError(t, enc.WriteField(hpack.HeaderField{Name: "x-a", Value: "value"}))
	}
	dec := newDecoder()
	fields, err := dec.decode(w.Bytes(), nil, 100)
	require.ErrorIs(t, err, errLongList)
	assert.Len(t, fields, 2)

	w.Reset() // the table is up to date after a list that was too large
	require.NoError(t, enc.WriteField(hpack.HeaderField{Name: "x-a", Value: "value"}))
	fields, err = dec.decode(w.Bytes(), nil, 100)
	require.NoError(t, err)
	assert.Equal(t, "value", fields[0].value)
}

func TestDecoderMalformed(t *testing.T) {
	for name, block := range map[string]string{
		"index 0":               "\x80",
		"index above the table": "\xff\x10",
		"integer that ends":     "\xff",
		"integer too large":     "\xff\xff\xff\xff\xff\xff\x0f",
		"string that ends":      "\x40\x05ab",
		"padding of zeros":      "\x40\x81\x00\x00",
		"table too large":       "\x3f\xe2\x1f",
		"update after a field":  "\x82\x20",
	} {
		t.Run(name, func(t *testing.T) {
			dec := newDecoder()
			_, err := dec.decode([]byte(block), nil, 1<<20)
			assert.ErrorIs(t, err, errHPACK)
		})
	}
}

func TestDecoderInvalidNamesAndValues(t *testing.T) {
	for _, f := range []hpack.HeaderField{
		{Name: "Upper", Value: "v"}, {Name: "with space", Value: "v"}, {Name: "", Value: "v"}, {Name: "x\x00", Value: "v"},
		{Name: "x-a", Value: "a\r\nb"}, {Name: "x-a", Value: "\x00"}, {Name: "content-type", Value: "\x7f"},
	} {
		var w bytes.Buffer
		enc := hpack.NewEncoder(&w)
		dec := newDecoder()
		for range 3 { // literal, then indexed
			require.NoError(t, enc.WriteField(f))
			fields, err := dec.decode(w.Bytes(), nil, 1<<20)
			require.NoError(t, err)
			assert.Equal(t, invalidName, fields[0].name.kind, "%q", f)
			w.Reset()
		}
	}
}

// Repeated fields are indexed, and decoding repeated literals does not allocate, for all values of
// the hash.
func TestRepeatedFieldsAreCached(t *testing.T) {
	fields := make([]field, cacheWays)
	for i := range 200 {
		enc, literals, dec := newEncoder(), encoder{}, newDecoder()
		var block []byte
		var out []field
		for j := range fields {
			fields[j] = field{nameTrailer, strings.Repeat("v", j) + strconv.Itoa(i)}
			block = literals.field(block, nameTrailer, "", fields[j].value)
		}
		var indexed []byte
		for range 3 {
			indexed = indexed[:0]
			for _, f := range fields {
				indexed = enc.field(indexed, f.name, "", f.value)
			}
		}
		require.Len(t, indexed, len(fields))
		require.Zero(t, testing.AllocsPerRun(20, func() { out, _ = dec.decode(block, out[:0], 1<<20) }))
		require.Equal(t, fields, out)
	}
}
