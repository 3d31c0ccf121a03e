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

// slot holds the hash of a recently sent field. If the field was added to the dynamic table, the
// slot also holds its entry number and copies of its strings. The strings themselves could keep a
// whole message in memory.
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

// evict removes the oldest entries until need more bytes fit into the dynamic table.
func (e *encoder) evict(need int) {
	for e.size+need > e.max && len(e.sizes) > 0 {
		e.size -= e.sizes[0]
		e.sizes = e.sizes[1:]
		e.oldest++
	}
}

// appendInt appends an integer with a prefix of the given number of bits. The other bits of the first
// byte are those of first. It is the opposite of readInt.
func appendInt(b []byte, first byte, bits uint, v uint64) []byte {
	maxPrefix := uint64(1)<<bits - 1
	if v < maxPrefix {
		return append(b, first|byte(v))
	}
	b = append(b, first|byte(maxPrefix))
	for v -= maxPrefix; v >= 128; v >>= 7 {
		b = append(b, byte(v)|128)
	}
	return append(b, byte(v))
}

// start begins a header block. If setMax was called since the last block, start appends two size
// updates. The first one empties the table of the peer.
func (e *encoder) start(b []byte) []byte {
	if e.update {
		e.update = false
		b = append(b, 0x20)                      // the size 0
		b = appendInt(b, 0x20, 5, uint64(e.max)) // 001: a new size of the table
	}
	return b
}

// field appends one header field. If n is nil, key is the name, which may contain upper-case
// letters. Otherwise the name is n's, and key is ignored.
func (e *encoder) field(b []byte, n *fieldName, key, value string) []byte {
	static := uint64(0)
	if n != nil {
		key, static = n.lower, uint64(n.index)
	}
	// As long as the field is not in the table, it is a literal (four bits of prefix) that the peer
	// does not add to its table. op and bits change to a literal that it does add (01, six bits).
	op := byte(0)
	bits := uint(4)
	if e.max > 0 && len(value) < maxIndexedValue && len(key) < maxIndexedName {
		s, sent := e.slot(key, value)
		if s.number > e.oldest && s.value == value && s.name == key {
			// The field is in the dynamic table: one index replaces name and value.
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
	if static == 0 { // the name is not in the static table, so it follows as a string
		b = appendInt(b, 0, 7, uint64(len(key))) // 0: not Huffman-coded
		if n != nil {
			b = append(b, key...)
		} else {
			b = appendLower(b, key)
		}
	}
	b = appendInt(b, 0, 7, uint64(len(value))) // 0: not Huffman-coded
	return append(b, value...)
}

// slot returns the slot for the field with the given key and value, and true if the field was sent
// recently. A field's hash selects a set of slots in which it may be. If it is in none, slot replaces
// one, preferably an empty slot, then one whose field is not in the dynamic table.
func (e *encoder) slot(key, value string) (victim *slot, sent bool) {
	if e.slots == nil {
		e.slots = make([]slot, encoderSlots)
	}
	// The hash covers the whole value, and of the name only the length and the last byte, which is
	// cheap and enough to tell common names apart. field compares name and value before it uses an
	// entry.
	hash := maphash.String(hashSeed, value) + uint64(len(key))*0x9e3779b1
	if key != "" {
		hash += uint64(key[len(key)-1]) * 31
	}
	set := e.slots[hash%encoderSlots&^(cacheWays-1):][:cacheWays]
	victim = &set[hash%cacheWays]
	for i := range set {
		s := &set[i]
		if s.hash == hash {
			return s, true
		}
		// Replace an empty slot, or one whose entry the dynamic table has evicted, rather than a useful one.
		if s.hash == 0 || s.number <= e.oldest && victim.number > e.oldest {
			victim = s
		}
	}
	*victim = slot{hash: hash}
	return victim, false
}

// appendLower appends s in lower case, as HTTP/2 requires it for names.
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
		// n is nil for a name that is not common, which field then converts to lower case.
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

// values appends a field for each of the values that is valid. The name is as for field.
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
