package h2

import (
	"bytes"
	"errors"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"golang.org/x/net/http2/hpack" //nolint:depguard // its Huffman code only

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// tableSize is the maximum size of the dynamic tables in both directions, in bytes. It is the
// default in RFC 9113.
const tableSize = 4096

var (
	errHPACK    = errors.New("malformed HPACK block")
	errLongList = errors.New("header list too large")

	hashSeed = maphash.MakeSeed()
)

// decoder is the HPACK decoder of a connection. Only the goroutine that reads frames uses it.
type decoder struct {
	table     []field               // dynamic table; the newest entry is last
	size, max int                   // of the table, in bytes as HPACK counts them; the peer sets max
	names     map[string]*fieldName // received names that are not in knownNames

	// values is a cache of values that are not in the dynamic table. It may be nil, because
	// the sweeper clears it on an idle connection.
	values atomic.Pointer[[cachedValues]cachedValue]

	scratch bytes.Buffer // decoded bytes of a Huffman string
}

// cachedValue is an entry in the cache of received values, which saves allocating a repeated
// value again. A value's hash selects a set of cacheWays entries in which it may be. A full set
// stores a value when it is received for the second time.
type cachedValue struct {
	raw, value string
	lastHash   uint64 // hash of the last value that was looked up and not found
}

const (
	maxCachedValue = 96
	maxCachedName  = 64
	cachedValues   = 32
	cacheWays      = 4
	maxNames       = 64
	maxUpdates     = 2 // of the size of the table, in one header block
)

func newDecoder() decoder { return decoder{max: tableSize} }

// add adds an entry to the dynamic table, and evicts the oldest ones if the table is then too
// large.
func (d *decoder) add(f field) {
	d.size += f.size()
	d.table = append(d.table, f)
	d.evict()
}

// evict removes the oldest entries of the dynamic table until it is within its size limit (RFC 7541,
// section 4.3).
func (d *decoder) evict() {
	n := 0
	for ; d.size > d.max; n++ {
		d.size -= d.table[n].size()
	}
	d.table = slices.Delete(d.table, 0, n)
}

// entry returns the field with the index i, which counts first the static table and then the
// dynamic table, whose newest entry comes first. It returns false if there is no such index.
func (d *decoder) entry(i uint64) (field, bool) {
	if i <= staticEntries {
		return staticTable[i], i > 0
	}
	i -= staticEntries
	if i > uint64(len(d.table)) {
		return field{}, false
	}
	return d.table[uint64(len(d.table))-i], true
}

// readInt decodes an integer whose prefix consists of the given number of bits (RFC 7541, section
// 5.1). p is not empty. rest is what follows the integer.
func readInt(p []byte, bits uint) (v uint64, rest []byte, ok bool) {
	maxPrefix := uint64(1)<<bits - 1
	// A value that fits into the prefix has one byte. Otherwise the prefix is all ones, and seven
	// bits of the rest follow in each byte, the lowest first. Integers of more than four such bytes
	// are rejected.
	v = uint64(p[0]) & maxPrefix
	p = p[1:]
	if v < maxPrefix {
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

// rawString is a string literal before decoding. It may be Huffman-coded.
type rawString struct {
	b       []byte
	huffman bool // b is Huffman-coded
}

// readString decodes a string literal: a bit for the Huffman code, a length of seven bits, and the
// bytes.
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

// plain returns the decoded bytes of s. They are valid until plain is called again, because they
// may use d.scratch.
func (d *decoder) plain(s rawString) ([]byte, bool) {
	if !s.huffman {
		return s.b, true
	}
	if d.scratch.Cap() > 4<<10 { // do not keep the memory of a rare long value
		d.scratch = bytes.Buffer{}
	}
	d.scratch.Reset()
	_, err := hpack.HuffmanDecode(&d.scratch, s.b)
	return d.scratch.Bytes(), err == nil
}

// name returns the properties of the field name s. Names that are not common are remembered up to a
// limit for each connection, because peers repeat them.
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
	// A peer must not fill the memory with ever new names, or with long ones.
	if len(d.names) < maxNames && len(b) <= maxCachedName {
		if d.names == nil {
			d.names = make(map[string]*fieldName)
		}
		d.names[n.lower] = n
	}
	return n, true
}

// value returns a field's decoded value. ok is false if s is malformed. valid is false if the
// value contains bytes that are not allowed in a field value. If indexed is true, the field will
// be added to the dynamic table, and value does not use the cache.
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
	// The cache needs no flag for Huffman-coded values, because their length differs from the
	// decoded one: see cached.
	if cached != nil && valid && s.huffman == (len(s.b) != len(value)) {
		if cached.value, cached.raw = value, value; s.huffman {
			cached.raw = string(s.b)
		}
	}
	return value, valid, true
}

// cached looks up s in the cache of values. If it is there, cached returns its entry and true.
// Otherwise it returns false and the entry in which the caller should store the value, which may
// be nil when s is looked up for the first time, because only a repeated value replaces another
// one.
func (d *decoder) cached(s rawString) (entry *cachedValue, found bool) {
	values := d.values.Load()
	if values == nil {
		values = new([cachedValues]cachedValue)
		d.values.Store(values)
	}
	hash := maphash.Bytes(hashSeed, s.b)
	if s.huffman {
		hash++
	}
	// The hash selects a set of cacheWays adjacent entries, and the one of the set to be replaced.
	set := values[hash%cachedValues&^(cacheWays-1):][:cacheWays]
	entry = &set[hash%cacheWays]
	for i := range set {
		v := &set[i]
		if v.raw == string(s.b) && s.huffman == (len(v.raw) != len(v.value)) {
			return v, true
		}
		if v.raw == "" {
			entry = v
		}
	}
	// A full set: a value replaces another one only if it missed twice in a row.
	if entry.raw != "" && entry.lastHash != hash {
		entry.lastHash = hash
		return nil, false
	}
	return entry, false
}

// decode decodes a header block and appends its fields to out. If the fields are larger
// than limit bytes, it returns a part of them and errLongList. It still decodes the whole
// block, because the dynamic table must stay up to date.
func (d *decoder) decode(p []byte, out []field, limit int) (_ []field, err error) {
	for updates := 0; len(p) > 0; {
		b := p[0]
		var f field
		var i uint64
		var ok bool
		switch {
		// A field that is in one of the tables as a whole.
		case b&0x80 != 0:
			if i, p, ok = readInt(p, 7); !ok {
				return out, errHPACK
			}
			if f, ok = d.entry(i); !ok {
				return out, errHPACK
			}
		// A change of the table's maximum size, which is allowed only before the first field of a
		// block.
		case b&0xe0 == 0x20:
			if i, p, ok = readInt(p, 5); !ok || i > tableSize || updates == maxUpdates {
				return out, errHPACK
			}
			updates++
			d.max = int(i)
			d.evict()
			continue
		// A literal field. If its first two bits are 01, the peer has added it to its dynamic table.
		default:
			if f, p, ok = d.literal(p); !ok {
				return out, errHPACK
			}
			if b&0xc0 == 0x40 {
				d.add(f)
			}
		}
		updates = maxUpdates // none may follow a field
		if limit -= f.size(); limit < 0 {
			err = errLongList
			continue
		}
		out = append(out, f)
	}
	return out, err
}

// literal decodes a field that is not in a table as a whole: an index of its name, or 0 and the name
// itself, and then the value. ok is false if p is malformed. literal does not change the dynamic table: if
// the peer has added the field to it, decode calls add.
func (d *decoder) literal(p []byte) (f field, rest []byte, ok bool) {
	// The index of the name has four bits, or six if the field is added to the dynamic table.
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
		f, ok = d.entry(i)
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
	// Six bits mean that decode will add the field to the dynamic table, which makes the cache superfluous.
	if f.value, valid, ok = d.value(s, bits == 6); ok && !valid {
		f = f.invalidValue()
	}
	return f, p, ok
}
