<?php
// Answers each request with its body.
$body = file_get_contents('php://input');
header('Content-Type: application/octet-stream');
header('Content-Length: ' . strlen($body));
echo $body;
