package config

// Tracing traces requests. The gateway continues a client's trace and passes it on to services,
// in the W3C headers traceparent and tracestate.
type Tracing struct {
	// URL of an OTLP receiver over HTTP. Spans are sent as protobuf.
	Endpoint URL `yaml:"endpoint" is:"required"`
	// Share of the traces to sample, from 0 to 1, if they begin at the gateway. If a client sends
	// a traceparent, its sampled flag decides instead.
	SampleRatio float64 `yaml:"sampleRatio" default:"0.01" min:"0" max:"1"`
	// The spans' attribute service.name.
	ServiceName Text `yaml:"serviceName" default:"gateway"`
}
