// Towervet finds three mistakes that are easily made with gotower's services
// and that no test of the happy path shows:
//
//	readyforward  a wrapper's Ready that never asks the service it wraps, so
//	              that whoever waits for it waits for nothing
//	readycall     Ready (or layer.Poll) and then Call of one service in one
//	              block: a request that waits for a hint, in no order; a
//	              layer.Queue waits better
//	errcompare    == or != with an error of package layer: such errors come
//	              wrapped, and only errors.Is sees through
//
// Run it as a vet tool:
//
//	go -C tools install ./towervet
//	go vet -vettool="$(go env GOPATH)/bin/towervet" ./...
package main

import "golang.org/x/tools/go/analysis/multichecker"

func main() {
	multichecker.Main(readyForward, readyCall, errCompare)
}
