"""LeRobot's asynchronous inference, /transport.AsyncInference/*, for RobotClient as it is."""
