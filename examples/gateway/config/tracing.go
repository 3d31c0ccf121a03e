package config

// Tracing specifies the traces of requests. The gateway continues the trace of a client, and
// sends the context of the trace to services, by the W3C headers traceparent and tracestate.
type Tracing struct {
	// The URL of a receiver of OTLP over HTTP, to which spans are sent as JSON.
	Endpoint URL `yaml:"endpoint" is:"required"`
	// The share, from 0 to 1, of the traces that the gateway samples among those that begin
	// at the gateway. If a client sends a traceparent, the gateway uses the sampled flag in
	// it.
	SampleRatio float64 `yaml:"sampleRatio" default:"0.01" min:"0" max:"1"`
	// The attribute service.name of the spans.
	ServiceName Text `yaml:"serviceName" default:"gateway"`
}
