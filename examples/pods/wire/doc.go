// Package wire parses what tcpdump captured, and reports which connections use TLS.
//
//	capture.pcap ─▶ Read ─▶ []Flow             one for each direction of a connection
//	                         ├─ Data           its bytes in order
//	                         ├─ TLS            whether all of it is TLS records
//	                         └─ ServerName     TLS server name that the client requested
package wire
