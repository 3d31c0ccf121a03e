// Package wire reads what tcpdump captured, and says of each connection whether
// all that it carried was TLS.
//
//	capture.pcap ─▶ Read ─▶ []Flow             one for each direction of a connection
//	                         ├─ Data           its bytes, in their order, once
//	                         ├─ TLS            are they records of TLS, all of them?
//	                         └─ ServerName     whom the client asked for
package wire
