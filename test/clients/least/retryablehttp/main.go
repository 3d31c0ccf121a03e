// Command retryablehttp is the smallest program that uses go-retryablehttp.
package main

import "github.com/hashicorp/go-retryablehttp"

func main() { _, _ = retryablehttp.Get("http://web.example/") } //nolint:bodyclose // it only shows the size
