module github.com/warpdata/wshard-go

go 1.22

require github.com/klauspost/compress v1.18.0
