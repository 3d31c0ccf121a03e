package h2

import (
	"bytes"
	"errors"

	"golang.org/x/net/http2/hpack" //nolint:depguard // its Huffman code only

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// tableSize is the maximum size of the dynamic tables of both directions, in bytes. It is
// the default of RFC 9113.
const tableSize = 4096

var (
	errHPACK    = errors.New("malformed HPACK block")
	errLongList = errors.New("header list too large")
)

// decoder is the HPACK decoder of a connection. Only the goroutine that reads frames uses it.
type decoder struct {
	table     []field // dynamic table; the newest entry is last
	size, max int
	names     map[string]*fieldName // received names that are not in knownNames
	scratch   bytes.Buffer          // decoded bytes of a Huffman string
}

const (
	maxCachedName = 64
	maxNames      = 64
	maxUpdates    = 2 // of the size of the table, in one header block
)

func newDecoder() decoder { return decoder{max: tableSize} }

func (d *decoder) add(f field) {
	d.size += f.size()
	d.table = append(d.table, f)
	d.evict()
}

func (d *decoder) evict() {
	for d.size > d.max {
		d.size -= d.table[0].size()
		d.table[0] = field{}
		d.table = d.table[1:]
	}
}

func (d *decoder) at(i uint64) (field, bool) {
	if i <= staticEntries {
		return staticTable[i], i > 0
	}
	i -= staticEntries
	if i > uint64(len(d.table)) {
		return field{}, false
	}
	return d.table[uint64(len(d.table))-i], true
}

// readInt decodes an integer with a prefix of the given number of bits (RFC 7541, section
// 5.1). The result rest has the bytes after the integer.
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

// rawString is a string literal before decoding. It may be Huffman-coded.
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

// plain returns the decoded bytes of s. They are valid until the next call of plain,
// because they may use the memory of d.scratch.
func (d *decoder) plain(s rawString) ([]byte, bool) {
	if !s.huffman {
		return s.b, true
	}
	if d.scratch.Cap() > 4<<10 {
		d.scratch = bytes.Buffer{}
	}
	d.scratch.Reset()
	_, err := hpack.HuffmanDecode(&d.scratch, s.b)
	return d.scratch.Bytes(), err == nil
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
		case b&0x80 != 0:
			if i, p, ok = readInt(p, 7); !ok {
				return out, errHPACK
			}
			if f, ok = d.at(i); !ok {
				return out, errHPACK
			}
		case b&0xe0 == 0x20:
			if i, p, ok = readInt(p, 5); !ok || i > tableSize || updates == maxUpdates {
				return out, errHPACK
			}
			updates++
			d.max = int(i)
			d.evict()
			continue
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
	b, ok := d.plain(s)
	if f.value = string(b); !message.ValidValueBytes(b) {
		f = f.invalidValue()
	}
	return f, p, ok
}
