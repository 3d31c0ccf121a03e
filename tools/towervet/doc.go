// Towervet finds three mistakes with gotower's services that tests of the
// normal path do not show:
//
//	readyforward  the Ready of a wrapper ignores the wrapped service, so a
//	              caller waits without effect
//	readycall     Ready (or layer.Poll) and then Call of one service in one
//	              block: Ready reserves nothing; use a layer.Queue
//	errcompare    == or != with an error of package layer: such errors are
//	              wrapped, so use errors.Is
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
