package h2

import (
	"hash/maphash"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// encoder is the HPACK encoder of a connection. It adds a field to the dynamic table when
// the field is sent for the second time, so that unique values do not evict others. It does
// not use the Huffman code, which would save little: repeated fields are sent as an index.
type encoder struct {
	max, size      int
	update         bool   // a size update of the table has to be sent
	newest, oldest uint64 // numbers of the newest entry and of the entry evicted last
	sizes          []int  // sizes of the entries oldest+1 to newest
	slots          []slot // recently sent fields, by hash
}

// slot has the hash of a recently sent field. If the field was added to the dynamic table, the slot
// also has the number of its entry and copies of its strings. The strings themselves could keep the
// memory of a whole message.
type slot struct {
	hash        uint64
	name, value string
	number      uint64
}

const (
	encoderSlots    = 32
	maxIndexedValue = 256
	maxIndexedName  = 64
)

func newEncoder() encoder { return encoder{max: tableSize} }

// setMax applies SETTINGS_HEADER_TABLE_SIZE of the peer, and empties the table. The table never
// becomes larger than tableSize.
func (e *encoder) setMax(n uint32) {
	e.max = int(min(n, tableSize))
	e.update = true
	e.evict(e.max)
}

func (e *encoder) evict(need int) {
	for e.size+need > e.max && len(e.sizes) > 0 {
		e.size -= e.sizes[0]
		e.sizes = e.sizes[1:]
		e.oldest++
	}
}

func appendInt(b []byte, first byte, bits uint, v uint64) []byte {
	most := uint64(1)<<bits - 1
	if v < most {
		return append(b, first|byte(v))
	}
	b = append(b, first|byte(most))
	for v -= most; v >= 128; v >>= 7 {
		b = append(b, byte(v)|128)
	}
	return append(b, byte(v))
}

// start begins a header block. If setMax was called since the last block, start appends two size
// updates. The first one empties the table of the peer.
func (e *encoder) start(b []byte) []byte {
	if e.update {
		e.update = false
		b = append(b, 0x20)
		b = appendInt(b, 0x20, 5, uint64(e.max))
	}
	return b
}

// field appends one header field. If n is nil, the argument key is the name, which may have
// upper-case letters. Otherwise n has the name, and key is ignored.
func (e *encoder) field(b []byte, n *fieldName, key, value string) []byte {
	static := uint64(0)
	if n != nil {
		key, static = n.lower, uint64(n.index)
	}
	op, bits := byte(0), uint(4)
	if e.max > 0 && len(value) < maxIndexedValue && len(key) < maxIndexedName {
		s, sent := e.slot(key, value)
		if s.number > e.oldest && s.value == value && s.name == key {
			return appendInt(b, 0x80, 7, staticEntries+1+e.newest-s.number)
		}
		if need := len(key) + len(value) + fieldOverhead; sent && need <= e.max {
			e.evict(need)
			e.size += need
			e.sizes = append(e.sizes, need)
			e.newest++
			s.name, s.value, s.number = strings.Clone(key), strings.Clone(value), e.newest
			op, bits = 0x40, 6
		}
	}
	b = appendInt(b, op, bits, static)
	if static == 0 {
		b = appendInt(b, 0, 7, uint64(len(key)))
		if n != nil {
			b = append(b, key...)
		} else {
			b = appendLower(b, key)
		}
	}
	b = appendInt(b, 0, 7, uint64(len(value)))
	return append(b, value...)
}

// slot returns the slot of the field with the given key and value, and true if the field was sent
// recently. The hash of a field selects a set of slots that may have it. If none of them has it, slot
// replaces one. It prefers an empty slot, then one with a field that is not in the dynamic table.
func (e *encoder) slot(key, value string) (at *slot, sent bool) {
	if e.slots == nil {
		e.slots = make([]slot, encoderSlots)
	}
	hash := maphash.String(hashSeed, value) + uint64(len(key))*0x9e3779b1
	if key != "" {
		hash += uint64(key[len(key)-1]) * 31
	}
	set := e.slots[hash%encoderSlots&^(cacheWays-1):][:cacheWays]
	at = &set[hash%cacheWays]
	for i := range set {
		s := &set[i]
		if s.hash == hash {
			return s, true
		}
		if s.hash == 0 || s.number <= e.oldest && at.number > e.oldest {
			at = s
		}
	}
	*at = slot{hash: hash}
	return at, false
}

func appendLower(b []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		b = append(b, c)
	}
	return b
}

// header appends the fields of h. It skips invalid fields, content-length, pseudo-header fields, and
// the fields that HTTP/2 does not allow.
func (e *encoder) header(b []byte, h http.Header) []byte {
	for key, values := range h {
		n := byCanonical[key]
		switch {
		case n == nil:
			if !message.ValidName(key) {
				continue
			}
		case n.kind == connectionName, n.kind == lengthName, n.kind == pseudoName,
			n.kind == teName && (len(values) != 1 || values[0] != "trailers"):
			continue
		}
		b = e.values(b, n, key, values)
	}
	return b
}

// values appends a field for each of the values that is valid. The name is that of the method field.
func (e *encoder) values(b []byte, n *fieldName, key string, values []string) []byte {
	for _, value := range values {
		if message.ValidValue(value) {
			b = e.field(b, n, key, value)
		}
	}
	return b
}

// status appends the pseudo-header field :status of a response.
func (e *encoder) status(b []byte, status int) []byte {
	if status == http.StatusOK {
		return append(b, 0x88)
	}
	return e.field(b, nameStatus, "", message.StatusLines[status][:3])
}
