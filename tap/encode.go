package tap

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// wire is a message that is being written, in the order of its fields' numbers
// and those of a oneof last, as package proto writes it. Package proto would first
// need the message in some thirty pieces; for the fields of an event this is all
// that it takes.
type wire struct{ b []byte }

// open begins a message in the message. What is written until close is in it.
func (w *wire) open(field protowire.Number) (at int) {
	w.b = protowire.AppendTag(w.b, field, protowire.BytesType)
	w.b = append(w.b, 0) // the length, which most often has one byte
	return len(w.b)
}

func (w *wire) close(at int) {
	n := len(w.b) - at
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 {
		var room [9]byte
		w.b = append(w.b, room[:more]...)
		copy(w.b[at+more:], w.b[at:at+n])
	}
	protowire.AppendVarint(w.b[:at-1], uint64(n))
}

// number writes nothing for 0, as is the rule for fields outside of a oneof.
func (w *wire) number(field protowire.Number, n uint64) {
	if n != 0 {
		w.one(field, n)
	}
}

// one writes a number of a oneof.
func (w *wire) one(field protowire.Number, n uint64) {
	w.b = protowire.AppendTag(w.b, field, protowire.VarintType)
	w.b = protowire.AppendVarint(w.b, n)
}

func (w *wire) fixed64(field protowire.Number, n uint64) {
	if n != 0 {
		w.b = protowire.AppendTag(w.b, field, protowire.Fixed64Type)
		w.b = protowire.AppendFixed64(w.b, n)
	}
}

// bytes writes nothing for "". Strings must be valid UTF-8.
func (w *wire) bytes(field protowire.Number, s string) {
	if s != "" {
		w.text(field, s)
	}
}

// text writes a string of a oneof or of a map.
func (w *wire) text(field protowire.Number, s string) {
	w.b = protowire.AppendTag(w.b, field, protowire.BytesType)
	w.b = protowire.AppendString(w.b, s)
}

// duration writes a google.protobuf.Duration.
func (w *wire) duration(field protowire.Number, d time.Duration) {
	at := w.open(field)
	w.number(1, uint64(d/time.Second))
	w.number(2, uint64(d%time.Second))
	w.close(at)
}
