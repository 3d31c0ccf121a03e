package h2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Frame types (RFC 9113, section 6).
const (
	frameData = iota
	frameHeaders
	framePriority
	frameRSTStream
	frameSettings
	framePushPromise
	framePing
	frameGoAway
	frameWindowUpdate
	frameContinuation
)

// Flags of frames (RFC 9113, section 6).
const (
	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Settings (RFC 9113, section 6.5.2, and RFC 8441).
const (
	settingHeaderTableSize = iota + 1
	settingEnablePush
	settingMaxConcurrentStreams
	settingInitialWindowSize
	settingMaxFrameSize
	settingMaxHeaderListSize
	_
	settingEnableConnectProtocol
)

const (
	frameHead       = 9 // size of the header of a frame
	minMaxFrame     = 16 << 10
	maxMaxFrame     = 60 << 10 // largest frame of either side, so that it fits into a read buffer
	maxWindow       = 1<<31 - 1
	maxStreamID     = 1<<31 - 1
	defaultWindow   = 65535
	defaultStreams  = 250
	defaultHeaders  = 256 << 10
	maxQueuedData   = largeBuffer - minMaxFrame - 64 // senders wait while more bytes are queued
	maxQueuedOutput = 1 << 20                        // the connection ends when more bytes are queued
)

// ConnError is the error of a connection that ended with an HTTP/2 error code.
type ConnError struct {
	Code   uint32
	Remote bool   // true if the peer sent the error in a GOAWAY
	Reason string // text in the GOAWAY
}

// Error returns a text with the name of the error code and the reason. It tells if the peer has
// ended the connection.
func (e *ConnError) Error() string {
	suffix := ""
	if e.Remote {
		suffix = " by the peer"
	}
	return fmt.Sprintf("HTTP/2 connection ended%s: %s: %s", suffix, message.CodeName(e.Code), e.Reason)
}

func connError(code uint32, reason string) error { return &ConnError{Code: code, Reason: reason} }

func protocolError(reason string) error { return connError(message.CodeProtocol, reason) }

// streamError is an error of the peer on one stream. The stream is reset, and the
// connection continues.
type streamError struct {
	id, code uint32
	reason   string
}

func (e *streamError) Error() string { return e.reason }

// malformed returns the error of a message that violates HTTP/2, on the stream with the given ID.
func malformed(id uint32, reason string) error {
	return &streamError{id, message.CodeProtocol, reason}
}

var (
	errHeaderTimeout = connError(message.CodeEnhanceYourCalm, "header timeout")

	errConnClosed   = errors.New("HTTP/2 connection closed")
	errPeerClosed   = fmt.Errorf("HTTP/2 connection closed by the peer: %w", io.ErrUnexpectedEOF)
	errDraining     = errors.New("HTTP/2 connection is draining")
	errStreamDone   = errors.New("HTTP/2 stream is complete")
	errPingTimeout  = errors.New("HTTP/2 connection ended: no answer to a PING")
	errWriteTimeout = errors.New("HTTP/2 connection ended: write timeout")
)

// frameLength returns the payload length in a frame's header.
func frameLength(head []byte) int { return int(head[0])<<16 | int(head[1])<<8 | int(head[2]) }

// appendFrame appends the header of a frame with a payload of n bytes (RFC 9113, section 4.1). The caller appends the
// payload.
func appendFrame(p []byte, n int, typ, flags byte, id uint32) []byte {
	return append(p, byte(n>>16), byte(n>>8), byte(n), typ, flags,
		byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

// The following methods queue frames. The caller holds mu.

// queueControl queues a frame whose payload consists of 32-bit numbers in network byte order, as in
// RST_STREAM, PING and WINDOW_UPDATE.
func (c *conn) queueControl(typ, flags byte, id uint32, payload ...uint32) {
	out := c.output()
	out.B = appendFrame(out.B, 4*len(payload), typ, flags, id)
	for _, v := range payload {
		out.B = binary.BigEndian.AppendUint32(out.B, v)
	}
}

// queueWindowUpdate allows the peer to send n more bytes on the stream with the given ID, or on the connection if
// that is 0. The caller holds mu, as for all functions that queue a frame.
func (c *conn) queueWindowUpdate(id uint32, n int64) {
	c.queueControl(frameWindowUpdate, 0, id, uint32(n))
}

// queuePing queues a PING with the payload data, or the answer to one if flags is flagAck.
func (c *conn) queuePing(flags byte, data uint64) {
	c.queueControl(framePing, flags, 0, uint32(data>>32), uint32(data))
}

// queueGoAway queues a GOAWAY: the peer must open no more streams, and those with an ID above last were not
// processed.
func (c *conn) queueGoAway(last, code uint32, reason string) {
	out := c.output()
	out.B = appendFrame(out.B, 8+len(reason), frameGoAway, 0, 0) // no flags; stream 0 is the connection
	out.B = binary.BigEndian.AppendUint64(out.B, uint64(last)<<32|uint64(code))
	out.B = append(out.B, reason...)
}

// setting is one parameter in a SETTINGS frame.
type setting struct {
	id    uint16
	value uint32
}

// queueSettings adds a SETTINGS frame with the settings in list to the output.
func (c *conn) queueSettings(list ...setting) {
	out := c.output()
	out.B = appendFrame(out.B, 6*len(list), frameSettings, 0, 0) // no flags; stream 0 is the connection
	for _, s := range list {
		out.B = binary.BigEndian.AppendUint16(out.B, s.id)
		out.B = binary.BigEndian.AppendUint32(out.B, s.value)
	}
}
