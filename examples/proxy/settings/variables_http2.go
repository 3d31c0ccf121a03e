package settings

// HTTP/2's limits for its settings, from RFC 9113, section 6.5.2. Frames and windows are in bytes.
const (
	minFrame  = 1 << 14
	maxFrame  = 1<<24 - 1
	maxWindow = 1<<31 - 1
	maxUint32 = 1<<32 - 1 // for settings without a limit of their own

	minConnWindow = 1<<16 - 1 // the initial size, which cannot be reduced (section 6.9.2)
)

// The names, without their prefix, of the variables for the HTTP/2 windows of both servers, the outbound
// and the inbound one. Variables for a single server override them: see [http2].
const (
	stream     = "HTTP2_INITIAL_STREAM_WINDOW_SIZE"
	connection = "HTTP2_INITIAL_CONNECTION_WINDOW_SIZE"
)

// windows returns the variables for the HTTP/2 windows of both servers. The variables for a single
// server, see [http2], take precedence because they are read later.
func windows(s *Settings) []variable {
	// both returns a set function for the same field of both servers.
	both := func(low uint32, field func(*HTTP2) *uint32) func(string) error {
		return func(text string) error {
			n, err := parseBetween(low, maxWindow)(text)
			if err == nil {
				*field(&s.Outbound.Server) = n
				*field(&s.Inbound.Server) = n
			}
			return err
		}
	}
	return []variable{
		{
			name: stream, def: "65535", help: "bytes, for both sides",
			set: both(1, func(h *HTTP2) *uint32 { return &h.InitialStreamWindowSize }),
		},
		{
			name: connection, def: "1048576", help: "bytes, for both sides; at least 65535",
			set: both(minConnWindow, func(h *HTTP2) *uint32 { return &h.InitialConnectionWindowSize }),
		},
	}
}

// http2 returns the variables for the HTTP/2 server h. side is OUTBOUND or INBOUND.
func http2(side string, h *HTTP2) []variable {
	const nothing = "the server has no such setting"
	name := side + "_SERVER_HTTP2_"
	// Variables with ignored are accepted, but have no effect.
	return []variable{
		{name: name + "MAX_CONCURRENT_STREAMS", set: store(&h.MaxConcurrentStreams, parseBetween(1, maxUint32)), help: "per connection"},
		{name: name + "MAX_FRAME_SIZE", set: store(&h.MaxFrameSize, parseBetween(minFrame, maxFrame)), help: "bytes"},
		{
			name: name + "MAX_HEADER_LIST_SIZE", set: store(&h.MaxHeaderListSize, parseBetween(1, maxUint32)),
			help: "bytes; also for HTTP/1",
		},
		{
			name: name + "MAX_PENDING_ACCEPT_RESET_STREAMS", set: store(&h.MaxPendingAcceptResetStreams, parseNumber),
			help: "limit of streams that a client resets",
		},
		{name: name + "MAX_SEND_BUF_SIZE", set: store(&h.MaxSendBufSize, parseNumber), ignored: nothing, help: "bytes per stream; ignored"},
		{
			name: name + "ADAPTIVE_FLOW_CONTROL", set: store(&h.AdaptiveFlowControl, parseBool), ignored: nothing,
			help: "adapt windows to the latency; ignored",
		},
		{name: name + "KEEP_ALIVE_INTERVAL", set: store(&h.KeepAliveInterval, parseDuration), help: "time between PINGs"},
		{name: name + "KEEP_ALIVE_TIMEOUT", set: store(&h.KeepAliveTimeout, parseDuration), help: "timeout of a PING"},
		{
			name: name + "INITIAL_STREAM_WINDOW_SIZE", overrides: stream,
			set:  store(&h.InitialStreamWindowSize, parseBetween(1, maxWindow)),
			help: "bytes; overrides HTTP2_*",
		},
		{
			name: name + "INITIAL_CONNECTION_WINDOW_SIZE", overrides: connection,
			set:  store(&h.InitialConnectionWindowSize, parseBetween(minConnWindow, maxWindow)),
			help: "bytes, at least 65535; overrides HTTP2_*",
		},
	}
}
