package h2

import (
	"errors"
	"hash/maphash"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// The dynamic tables of both directions have at most this size, which is the
// default of RFC 9113.
const tableSize = 4096

var (
	errHPACK    = errors.New("malformed HPACK block")
	errLongList = errors.New("header list too large")

	hashSeed = maphash.MakeSeed()
)

// decoder is the HPACK decoder of a connection.
type decoder struct {
	table     []field // the dynamic table; the newest is the last
	first     int     // of table that is not evicted
	size, max int
	names     map[string]*fieldName
	values    *[cachedValues]cachedValue // of literals that are not indexed, made for the first
	scratch   []byte
}

// cachedValue avoids the allocation of a repeated literal value. A value is
// stored at its second sight.
type cachedValue struct {
	raw, value string
	seen       uint64 // hash of the last value that was not found
}

const (
	maxCachedValue = 96
	maxCachedName  = 64
	cachedValues   = 32
	maxNames       = 64
)

func newDecoder() decoder { return decoder{max: tableSize} }

func (d *decoder) add(f field) {
	d.size += f.size()
	d.table = append(d.table, f)
	d.evict()
}

func (d *decoder) evict() {
	for d.size > d.max {
		d.size -= d.table[d.first].size()
		d.table[d.first] = field{}
		d.first++
	}
	if d.first > 32 && d.first > len(d.table)/2 {
		n := copy(d.table, d.table[d.first:])
		clear(d.table[n:])
		d.table, d.first = d.table[:n], 0
	}
}

func (d *decoder) at(i uint64) (field, bool) {
	if i <= staticEntries {
		return staticTable[i], i > 0
	}
	i -= staticEntries
	if i > uint64(len(d.table)-d.first) {
		return field{}, false
	}
	return d.table[uint64(len(d.table))-i], true
}

// readInt reads an integer with a prefix of so many bits.
func readInt(p []byte, bits uint) (v uint64, rest []byte, ok bool) {
	if len(p) == 0 {
		return 0, nil, false
	}
	most := uint64(1)<<bits - 1
	v = uint64(p[0]) & most
	p = p[1:]
	if v < most {
		return v, p, true
	}
	for shift := uint(0); len(p) > 0 && shift < 28; shift += 7 {
		b := p[0]
		p = p[1:]
		v += uint64(b&127) << shift
		if b < 128 {
			return v, p, true
		}
	}
	return 0, nil, false
}

// rawString is a string literal as it was received.
type rawString struct {
	b       []byte
	huffman bool
}

func readString(p []byte) (s rawString, rest []byte, ok bool) {
	if len(p) == 0 {
		return s, nil, false
	}
	s.huffman = p[0]&0x80 != 0
	n, p, ok := readInt(p, 7)
	if !ok || n > uint64(len(p)) {
		return s, nil, false
	}
	s.b = p[:n]
	return s, p[n:], true
}

// plain returns the bytes of s. They may be in scratch.
func (d *decoder) plain(s rawString) ([]byte, bool) {
	if !s.huffman {
		return s.b, true
	}
	b, ok := appendHuffman(d.scratch[:0], s.b)
	if cap(b) <= 4<<10 {
		d.scratch = b
	}
	return b, ok
}

func (d *decoder) name(s rawString) (*fieldName, bool) {
	b, ok := d.plain(s)
	if !ok {
		return nil, false
	}
	if n := knownNames[string(b)]; n != nil {
		return n, true
	}
	if n := d.names[string(b)]; n != nil {
		return n, true
	}
	n := newName(string(b))
	if len(d.names) < maxNames && len(b) <= maxCachedName {
		if d.names == nil {
			d.names = make(map[string]*fieldName)
		}
		d.names[n.lower] = n
	}
	return n, true
}

// value returns a value and whether its bytes are valid. If it is not indexed,
// it may be cached.
func (d *decoder) value(s rawString, indexed bool) (value string, valid, ok bool) {
	if len(s.b) == 0 {
		return "", true, true
	}
	var cached *cachedValue
	if !indexed && len(s.b) <= maxCachedValue {
		var found bool
		if cached, found = d.cached(s); found {
			return cached.value, true, true
		}
	}
	b, ok := d.plain(s)
	if !ok {
		return "", false, false
	}
	value, valid = string(b), message.ValidValueBytes(b)
	// The lengths tell a Huffman string from a plain one, so they must differ.
	if cached != nil && valid && s.huffman == (len(s.b) != len(value)) {
		if cached.value, cached.raw = value, value; s.huffman {
			cached.raw = string(s.b)
		}
	}
	return value, valid, true
}

// cached returns the entry that has the value, or the one to store it in, which
// is nil at the first sight. There are two entries for each hash.
func (d *decoder) cached(s rawString) (at *cachedValue, found bool) {
	if d.values == nil {
		d.values = new([cachedValues]cachedValue)
	}
	hash := maphash.Bytes(hashSeed, s.b)
	if s.huffman {
		hash++
	}
	first, second := &d.values[hash%cachedValues], &d.values[hash%cachedValues^1]
	for _, at := range [...]*cachedValue{first, second} {
		if at.raw == string(s.b) && s.huffman == (len(at.raw) != len(at.value)) {
			return at, true
		}
	}
	at = first
	if first.raw != "" && second.raw == "" {
		at = second
	}
	if at.seen != hash {
		at.seen = hash
		return nil, false
	}
	return at, false
}

// decode appends the fields of a block to out. Of a list larger than limit it
// returns a part and errLongList; the dynamic table is up to date then.
func (d *decoder) decode(p []byte, out []field, limit int) (_ []field, err error) {
	for start := true; len(p) > 0; start = false {
		b := p[0]
		var f field
		var i uint64
		var ok bool
		switch {
		case b&0x80 != 0:
			if i, p, ok = readInt(p, 7); !ok {
				return out, errHPACK
			}
			if f, ok = d.at(i); !ok {
				return out, errHPACK
			}
		case b&0xe0 == 0x20:
			if i, p, ok = readInt(p, 5); !ok || i > tableSize || !start {
				return out, errHPACK
			}
			d.max = int(i)
			d.evict()
			if len(p) > 0 && p[0]&0xe0 == 0x20 { // a second update may follow
				if i, p, ok = readInt(p, 5); !ok || i > tableSize {
					return out, errHPACK
				}
				d.max = int(i)
				d.evict()
			}
			continue
		default:
			if f, p, ok = d.literal(p); !ok {
				return out, errHPACK
			}
			if b&0xc0 == 0x40 {
				d.add(f)
			}
		}
		if limit -= f.size(); limit < 0 {
			err = errLongList
			continue
		}
		out = append(out, f)
	}
	return out, err
}

func (d *decoder) literal(p []byte) (f field, rest []byte, ok bool) {
	bits := uint(4)
	if p[0]&0x40 != 0 {
		bits = 6
	}
	i, p, ok := readInt(p, bits)
	if !ok {
		return f, nil, false
	}
	var s rawString
	if i > 0 {
		f, ok = d.at(i)
	} else if s, p, ok = readString(p); ok {
		f.name, ok = d.name(s)
	}
	if !ok {
		return f, nil, false
	}
	if s, p, ok = readString(p); !ok {
		return f, nil, false
	}
	var valid bool
	if f.value, valid, ok = d.value(s, bits == 6); ok && !valid {
		f = f.invalidValue()
	}
	return f, p, ok
}
