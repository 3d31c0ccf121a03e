module github.com/gotower/gotower/test/clients

go 1.26.0

require (
	github.com/gotower/gotower v0.0.0
	github.com/hashicorp/go-retryablehttp v0.7.8
	golang.org/x/net v0.60.0
)

require (
	github.com/go-kit/kit v0.13.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/klauspost/compress v1.20.4 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	golang.org/x/time v0.16.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/gotower/gotower => ../..
