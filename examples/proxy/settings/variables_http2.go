package settings

// The bounds of HTTP/2 (RFC 9113, section 6.5.2).
const (
	leastFrame = 1 << 14
	mostFrame  = 1<<24 - 1
	mostWindow = 1<<31 - 1
	most32     = 1<<32 - 1

	leastConnWindow = 1<<16 - 1 // it begins there, and nothing makes it smaller (section 6.9.2)
)

// The windows of both sides.
const (
	stream     = "HTTP2_INITIAL_STREAM_WINDOW_SIZE"
	connection = "HTTP2_INITIAL_CONNECTION_WINDOW_SIZE"
)

// windows are for both sides. Those of one side win, and are read after these.
func windows(s *Settings) []variable {
	both := func(least uint32, where func(*HTTP2) *uint32) func(string) error {
		return func(text string) error {
			n, err := parseBetween(least, mostWindow)(text)
			if err == nil {
				*where(&s.Outbound.Server), *where(&s.Inbound.Server) = n, n
			}
			return err
		}
	}
	return []variable{
		{
			name: stream, usual: "65535", help: "bytes, of both sides",
			set: both(1, func(h *HTTP2) *uint32 { return &h.InitialStreamWindowSize }),
		},
		{
			name: connection, usual: "1048576", help: "bytes, of both sides; at least 65535",
			set: both(leastConnWindow, func(h *HTTP2) *uint32 { return &h.InitialConnectionWindowSize }),
		},
	}
}

func http2(side string, h *HTTP2) []variable {
	const nothing = "the server of net/http has nothing like it"
	name := side + "_SERVER_HTTP2_"
	return []variable{
		{name: name + "MAX_CONCURRENT_STREAMS", set: to(&h.MaxConcurrentStreams, parseBetween(1, most32)), help: "of a connection"},
		{name: name + "MAX_FRAME_SIZE", set: to(&h.MaxFrameSize, parseBetween(leastFrame, mostFrame)), help: "bytes"},
		{
			name: name + "MAX_HEADER_LIST_SIZE", set: to(&h.MaxHeaderListSize, parseBetween(1, most32)),
			help: "bytes, of HTTP/1 requests too",
		},
		{
			name: name + "MAX_PENDING_ACCEPT_RESET_STREAMS", set: to(&h.MaxPendingAcceptResetStreams, parseNumber),
			help: "streams reset before they were looked at",
		},
		{name: name + "MAX_SEND_BUF_SIZE", set: to(&h.MaxSendBufSize, parseNumber), lost: nothing, help: "bytes of a stream; not honoured"},
		{
			name: name + "ADAPTIVE_FLOW_CONTROL", set: to(&h.AdaptiveFlowControl, parseBool), lost: nothing,
			help: "windows follow the delay; not honoured",
		},
		{name: name + "KEEP_ALIVE_INTERVAL", set: to(&h.KeepAliveInterval, parseDuration), help: "between pings"},
		{name: name + "KEEP_ALIVE_TIMEOUT", set: to(&h.KeepAliveTimeout, parseDuration), help: "for their answers"},
		{
			name: name + "INITIAL_STREAM_WINDOW_SIZE", beats: stream, set: to(&h.InitialStreamWindowSize, parseBetween(1, mostWindow)),
			help: "bytes; instead of HTTP2_*",
		},
		{
			name: name + "INITIAL_CONNECTION_WINDOW_SIZE", beats: connection,
			set:  to(&h.InitialConnectionWindowSize, parseBetween(leastConnWindow, mostWindow)),
			help: "bytes, at least 65535; instead of HTTP2_*",
		},
	}
}
