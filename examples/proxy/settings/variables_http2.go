package settings

// The limits of HTTP/2 settings in bytes, as in RFC 9113, section 6.5.2.
const (
	minFrame  = 1 << 14
	maxFrame  = 1<<24 - 1
	maxWindow = 1<<31 - 1
	maxUint32 = 1<<32 - 1

	minConnWindow = 1<<16 - 1 // the initial size, which cannot be reduced (section 6.9.2)
)

// The names of the variables that set the HTTP/2 windows of both servers, outbound and
// inbound.
const (
	stream     = "HTTP2_INITIAL_STREAM_WINDOW_SIZE"
	connection = "HTTP2_INITIAL_CONNECTION_WINDOW_SIZE"
)

// windows returns the variables that set the HTTP/2 windows of both servers, inbound and
// outbound. Each server also has its own variables, see [http2]. The variables of one
// server take precedence, because the proxy reads them later.
func windows(s *Settings) []variable {
	both := func(low uint32, where func(*HTTP2) *uint32) func(string) error {
		return func(text string) error {
			n, err := parseBetween(low, maxWindow)(text)
			if err == nil {
				*where(&s.Outbound.Server), *where(&s.Inbound.Server) = n, n
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

// http2 returns the variables of the HTTP/2 server of one side. side is OUTBOUND or
// INBOUND. The values are stored in h.
func http2(side string, h *HTTP2) []variable {
	const nothing = "the server has no such setting"
	name := side + "_SERVER_HTTP2_"
	return []variable{
		{name: name + "MAX_CONCURRENT_STREAMS", set: to(&h.MaxConcurrentStreams, parseBetween(1, maxUint32)), help: "per connection"},
		{name: name + "MAX_FRAME_SIZE", set: to(&h.MaxFrameSize, parseBetween(minFrame, maxFrame)), help: "bytes"},
		{
			name: name + "MAX_HEADER_LIST_SIZE", set: to(&h.MaxHeaderListSize, parseBetween(1, maxUint32)),
			help: "bytes; also for HTTP/1",
		},
		{
			name: name + "MAX_PENDING_ACCEPT_RESET_STREAMS", set: to(&h.MaxPendingAcceptResetStreams, parseNumber),
			help: "limit of streams that a client resets",
		},
		{name: name + "MAX_SEND_BUF_SIZE", set: to(&h.MaxSendBufSize, parseNumber), ignored: nothing, help: "bytes per stream; ignored"},
		{
			name: name + "ADAPTIVE_FLOW_CONTROL", set: to(&h.AdaptiveFlowControl, parseBool), ignored: nothing,
			help: "adapt windows to the latency; ignored",
		},
		{name: name + "KEEP_ALIVE_INTERVAL", set: to(&h.KeepAliveInterval, parseDuration), help: "time between PINGs"},
		{name: name + "KEEP_ALIVE_TIMEOUT", set: to(&h.KeepAliveTimeout, parseDuration), help: "timeout of a PING"},
		{
			name: name + "INITIAL_STREAM_WINDOW_SIZE", overrides: stream, set: to(&h.InitialStreamWindowSize, parseBetween(1, maxWindow)),
			help: "bytes; overrides HTTP2_*",
		},
		{
			name: name + "INITIAL_CONNECTION_WINDOW_SIZE", overrides: connection,
			set:  to(&h.InitialConnectionWindowSize, parseBetween(minConnWindow, maxWindow)),
			help: "bytes, at least 65535; overrides HTTP2_*",
		},
	}
}
