package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Constants for a libpcap file. It begins with a header of headLen bytes, which tells the byte
// order and the link type. A header of frameHead bytes precedes each frame.
const (
	magicMicro = 0xa1b2c3d4
	magicNano  = 0xa1b23c4d
	headLen    = 24
	frameHead  = 16
	ethernet   = 1
	maxFrame   = 1 << 18 // the maximum of tcpdump
)

// frames reads an Ethernet capture and calls visit for each frame, which is valid only during the
// call. It is no error if the capture ends within a frame, because tcpdump may still be writing
// it.
func frames(r io.Reader, visit func(frame []byte)) error {
	head := make([]byte, headLen)
	if _, err := io.ReadFull(r, head); err != nil {
		return fmt.Errorf("wire: capture: %w", err)
	}
	var order binary.ByteOrder = binary.LittleEndian
	// The first number shows in which byte order the file was written.
	if !magic(order.Uint32(head)) {
		order = binary.BigEndian
	}
	if !magic(order.Uint32(head)) {
		return fmt.Errorf("wire: %x at the start is not a libpcap capture", head[:4])
	}
	// The link type is the last field of the header.
	if link := order.Uint32(head[20:]); link != ethernet {
		return fmt.Errorf("wire: link type %d, must be Ethernet (%d)", link, ethernet)
	}
	frame := make([]byte, maxFrame)
	for {
		if _, err := io.ReadFull(r, head[:frameHead]); err != nil {
			return ended(err)
		}
		// size is how many bytes were captured, and whole how long the frame was.
		size := order.Uint32(head[8:])
		whole := order.Uint32(head[12:])
		if size > maxFrame || size < whole {
			return fmt.Errorf("wire: only %d bytes captured of a frame of %d", size, whole)
		}
		if _, err := io.ReadFull(r, frame[:size]); err != nil {
			return ended(err)
		}
		// The next frame overwrites it.
		visit(frame[:size])
	}
}

// magic reports whether n is the first number of a libpcap file.
func magic(n uint32) bool { return n == magicMicro || n == magicNano }

// ended returns nil if err is the end of the file, and err otherwise.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return fmt.Errorf("wire: %w", err)
}
